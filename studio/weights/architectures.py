"""The kind of model each family is, and so whether a training method can train it.

The families are those of the installed transformers, by `model_type`. They are sorted by its own
task mappings, and by a probe of each family that loads as a causal language model: whether later
tokens change the predictions of earlier ones. `tests/training/models/test_architectures.py` repeats
both. A family that is not listed is checked when it is loaded.
"""

import re
from collections.abc import Mapping
from typing import Any

from studio.weights.model_kinds import ModelKind

_FAMILIES: dict[ModelKind, str] = {
    "causal": """
        afmoe apertus arcee aria_text axk1 axk2 bailing_hybrid bamba beam biogpt bitnet
        bloom blt codegen cohere cohere2 cohere2_moe cohere_compass_text ctrl cwm dbrx
        deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 diffllama doge dots1 dots3_note
        dots3_note_text emu3 ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon falcon_h1
        falcon_mamba flex_olmo flint fuyu gemma gemma2 gemma3 gemma3_text gemma3n
        gemma3n_text gemma4 gemma4_assistant gemma4_text gemma4_unified
        gemma4_unified_assistant gemma4_unified_text git glm glm4 glm4_moe glm4_moe_lite
        glm_moe_dsa got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese
        gpt_oss gptj granite granite_swa granitemoe granitemoe_swa granitemoehybrid
        granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4
        hyperclovax inkling2_text inkling_text internlm3 iquestcoder jais2 jamba jetmoe
        kimi_linear kolibri1 laguna lfm2 lfm2_moe lfm3 llama llama4 llama4_text
        longcat_flash mamba mamba2 mellum mimo_v2_flash minicpm3 minimax minimax_m2
        minimax_m3_vl_text ministral ministral3 mistral mixtral mllama modernbert-decoder
        moshi mpt nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt
        opt persimmon phi phi3 phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_5
        qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen4_exp
        qwen4_exp_text recurrent_gemma rwkv seed_oss smollm3 solar_open stablelm starcoder2
        trocr vaultgemma xglm xlstm youtu zamba zamba2 zaya
    """,
    "encoder_decoder": """
        bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt led longt5
        m2m_100 marian mbart mt5 mvp nllb-moe pegasus pegasus_x plbart prophetnet
        switch_transformers t5 t5gemma t5gemma2 umt5
    """,
    "encoder": """
        albert bert bert-generation big_bird camembert convbert cpmant data2vec-text deberta
        deberta-v2 distilbert electra ernie esm esmc eurobert flaubert fnet funnel gte ibert
        jina_embeddings_v3 longformer luke megatron-bert mobilebert modernbert modernvbert
        mpnet mra neomme nomic_bert nystromformer reformer rembert roberta
        roberta-prelayernorm roc_bert roformer squeezebert tapas ultrabert ultravbert xlm
        xlm-roberta xlm-roberta-xl xlnet xmod yoso
    """,
    "multimodal": """
        aria aya_vision blip blip-2 chameleon cohere2_vision cohere_compass cosmos3_edge
        cosmos3_omni deepseek_ocr2 deepseek_vl deepseek_vl_hybrid diffusion_gemma
        ernie4_5_vl_moe evolla exaone4_5 fast_vlm florence2 glm46v glm4v glm4v_moe glm5_next
        glm_ocr glmga granite4_vision granite_docling hunyuan_vl hyperclovax_vision_v2
        idefics idefics2 idefics3 inkling2 inkling_mm_model instructblip instructblipvideo
        internvl janus kimi_k25 kosmos-2 kosmos-2.5 layoutlm layoutlmv2 layoutlmv3 lfm2_vl
        lfm3_vl lighton_ocr llava llava_next llava_next_video llava_onevision minicpm_ocr
        minicpmv4_6 minicpmv4_7 minimax_m3_vl mistral3 mistral4 mistral_large4 molmo2
        muse_glimmer muse_spark nemotron_h_omni ovis2 paddleocr_vl paligemma perception_lm
        pi0 pix2struct pp_chart2table pp_formulanet pp_ocrv5_mobile_rec pp_ocrv5_server_rec
        pp_ocrv6_small_rec pp_ocrv6_tiny_rec qianfan_ocr qwen2_5_omni_thinker qwen2_5_vl
        qwen2_vl qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe shieldgemma2 smolvlm step3p7
        udop unlimited_ocr video_llama_3 video_llava vilt vipllava vision-encoder-decoder
    """,
    "audio": """
        audio-spectrogram-transformer audioflamingo3 bark canary cohere_asr csm dac
        data2vec-audio dia fastspeech2_conformer fastspeech2_conformer_with_hifigan
        fun_asr_nano glmasr gradium_phonon_tts granite_speech granite_speech5_ctc
        granite_speech_plus higgs_audio_v2 higgs_audio_v2_tokenizer hubert
        kyutai_speech_to_text lasr_ctc moonshine moonshine_streaming moss_transcribe_diarize
        musicflamingo musicgen musicgen_melody nemo_speechlm nemotron3_5_asr
        nemotron3_diarization nemotron_asr_streaming neucodec parakeet_ctc parakeet_rnnt
        parakeet_tdt pocket_tts pocket_tts_audio_tokenizer pop2piano qwen2_5_omni
        qwen2_audio qwen3_asr qwen3_omni_moe seamless_m4t seamless_m4t_v2 sew sew-d
        speech-encoder-decoder speech_to_text speecht5 unispeech unispeech-sat vibevoice
        vibevoice_acoustic_tokenizer vibevoice_asr vits voxtral voxtral_realtime wav2vec2
        wav2vec2-bert wav2vec2-conformer wavlm whisper xcodec2
    """,
    "vision": """
        aimv2_vision_model align altclip beit bit chinese_clip chmv2 clip clipseg
        conditional_detr convnext convnextv2 cvt d_fine dab-detr data2vec-vision
        deformable_detr deimv2 deit depth_anything depth_pro detr dinat dinov2
        dinov2_with_registers dinov3_convnext dinov3_vit donut-swin dpt edgetam
        edgetam_video efficientloftr efficientnet focalnet glpn grounding-dino hgnet_v2
        hiera ijepa imagegpt levit lightglue lw_detr lw_detr_vit maskformer-swin metaclip_2
        mlcd mlcd_vision_model mm-grounding-dino mobilenet_v1 mobilenet_v2 mobilevit
        mobilevitv2 omdet-turbo owlv2 owlvit perceiver pixio poolformer pp_doclayout_v2
        pp_doclayout_v3 pp_doclayout_v4 pp_lcnet pp_lcnet_v3 pp_lcnet_v4 pp_ocrv5_mobile_det
        pp_ocrv5_server_det pp_ocrv6_medium_det pp_ocrv6_small_det prompt_depth_anything pvt
        pvt_v2 regnet resnet rf_detr rf_detr_dinov2 rt_detr rt_detr_resnet rt_detr_v2 sam
        sam2 sam2_video sam3_tracker sam3_video sam_hq sapiens2 segformer siglip siglip2
        siglip_vision_model superglue superpoint swiftformer swin swin2sr swinv2
        table-transformer textnet timesformer timm_backbone timm_wrapper tipsv2 tipsv2_dpt
        tipsv2_vision_model uvdoc_backbone videomae videoprism videoprism_vision_model vit
        vit_mae vit_msn vitdet vitmatte vitpose vitpose_backbone vivit vjepa2 yolos zoedepth
    """,
    "other": """
        EvollaModel aimv2 aimv2_text_model align_text_model align_vision_model
        altclip_text_model altclip_vision_model audioflamingo3_encoder autoformer
        blip_2_qformer blip_2_vision_model blip_text_model blip_vision_model
        blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher bridgetower
        bridgetower_text_model bridgetower_vision_model bros canary_decoder canine
        chameleon_vqgan chinese_clip_text_model chinese_clip_vision_model clap
        clap_audio_model clap_text_model clip_text_model clip_vision_model
        clipseg_text_model clipseg_vision_model clvp clvp_decoder clvp_encoder
        cohere_compass_vision colmodernvbert colpali colqwen2 cosmos3_edge_text
        cosmos3_edge_vision csm_depth_decoder_model decision_transformer
        deepseek_ocr2_encoder deepseek_ocr2_sam_vision_model deepseek_ocr2_text
        deepseek_ocr2_vision dia_decoder dia_encoder diffusion_gemma_text
        dots3_note_audio_encoder dots3_note_vision_encoder dpr edgetam_mask_decoder
        edgetam_prompt_encoder edgetam_video_mask_decoder edgetam_video_prompt_encoder
        edgetam_vision_model embedding_gemma2 embedding_gemma2_text emu3_text_model
        emu3_vqgan encodec eomt eomt_dinov3 ernie4_5_vl_moe_text ernie4_5_vl_moe_vision
        esmfold2 exaone4_5_vision fastspeech2_conformer_hifigan flava flava_image_codebook
        flava_image_model flava_multimodal_model flava_text_model florence_vision
        fun_asr_nano_encoder gemma3n_audio gemma3n_vision gemma4_audio gemma4_unified_audio
        gemma4_unified_vision gemma4_vision git_vision_model glm4v_moe_text glm4v_moe_vision
        glm4v_text glm4v_vision glm5_next_text glm5_next_vision glm_image glm_image_text
        glm_image_vision glm_image_vqmodel glm_ocr_text glm_ocr_vision glmasr_encoder
        got_ocr2_vision granite4_vision_text granite_docling_text granite_docling_vision
        granite_speech5_encoder granite_speech_encoder granite_speech_plus_encoder groupvit
        groupvit_text_model groupvit_vision_model hunyuan_vl_text hunyuan_vl_vision
        idefics2_perceiver idefics2_vision idefics3_vision idefics_perciever idefics_vision
        informer inkling2_vision inkling_audio inkling_vision instructblip_qformer
        instructblip_vision_model instructblipvideo_qformer instructblipvideo_vision_model
        internvl_vision janus_vision_model janus_vqgan jev kimi_k25_vision
        kosmos_2_5_text_model kosmos_2_5_vision_model kosmos_2_text_model
        kosmos_2_vision_model lasr_encoder layoutxlm lfm3_vl_vision lilt llama4_vision_model
        lxmert markuplm mask2former maskformer metaclip_2_text_model metaclip_2_vision_model
        mgp-str mimi mimi_decoder mimi_encoder minicpm_ocr_vision minicpmv4_6_vision
        minicpmv4_7_vision minimax_m3_vl_vision mistral_large4_text mllama_text_model
        mllama_vision_model molmo2_adapter molmo2_text molmo2_vision
        moonshine_streaming_encoder moshi_depth moss_transcribe_diarize_audio
        muse_glimmer_assistant muse_glimmer_text muse_glimmer_vision muse_spark_audio
        muse_spark_text muse_spark_vision musicgen_decoder musicgen_melody_decoder
        nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_audio
        nemotron3_5_transcribe_word_timestamp nemotron3_diarization_audio
        nemotron_asr_streaming_encoder nougat oneformer openai_privacy_filter ovis2_vision
        owlv2_text_model owlv2_vision_model owlvit_text_model owlvit_vision_model
        paddleocr_vl_text paddleocr_vl_vision parakeet_encoder patchtsmixer patchtst
        pe_audio pe_audio_encoder pe_audio_video pe_audio_video_encoder pe_video
        pe_video_encoder phi4_multimodal_audio phi4_multimodal_vision pix2struct_text_model
        pix2struct_vision_model pixtral pocket_tts_audio_tokenizer_decoder
        pocket_tts_audio_tokenizer_encoder pp_chart2table_vision pp_formulanet_text
        pp_formulanet_vision qianfan_ocr_vision qwen2_5_omni_audio_encoder
        qwen2_5_omni_bigvgan qwen2_5_omni_dit qwen2_5_omni_talker qwen2_5_omni_text
        qwen2_5_omni_token2wav qwen2_5_omni_vision_encoder qwen2_5_vl_text qwen2_5_vl_vision
        qwen2_audio_encoder qwen2_vl_text qwen2_vl_vision qwen3_5_moe_vision qwen3_5_vision
        qwen3_asr_encoder qwen3_omni_moe_audio_encoder qwen3_omni_moe_talker_code_predictor
        qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_omni_moe_vision_encoder
        qwen3_vl_moe_text qwen3_vl_moe_vision qwen3_vl_text qwen3_vl_vision qwen4_exp_vision
        radio rag sam2_hiera_det_model sam2_mask_decoder sam2_prompt_encoder
        sam2_video_mask_decoder sam2_video_prompt_encoder sam2_vision_model sam3
        sam3_detr_decoder sam3_detr_encoder sam3_geometry_encoder sam3_lite_text
        sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder
        sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder
        sam3_lite_text_text_model sam3_mask_decoder sam3_tracker_mask_decoder
        sam3_tracker_prompt_encoder sam3_tracker_video sam3_tracker_video_mask_decoder
        sam3_tracker_video_prompt_encoder sam3_vision_model sam3_vit_model
        sam_hq_mask_decoder sam_hq_prompt_encoder sam_hq_vision_model sam_mask_decoder
        sam_prompt_encoder sam_vision_model sapiens2_head seggpt siglip2_text_model
        siglip2_vision_model siglip_text_model slanet slanext slanext_vision smolvlm_vision
        speecht5_hifigan splinter step3p5 step3p5_vision t5_gemma_module t5gemma2_decoder
        t5gemma2_encoder t5gemma2_text time_series_transformer timesfm timesfm2_5
        tipsv2_text_model tvp univnet unlimited_ocr_sam_vision_model unlimited_ocr_text
        unlimited_ocr_vision unlimited_ocr_vision_encoder upernet uvdoc
        vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder
        vibevoice_diffusion video_llama_3_vision videomt videoprism_text_model
        vision-text-dual-encoder visual_bert voxtral_encoder voxtral_realtime_encoder
        voxtral_realtime_text xclip xclip_text_model xclip_vision_model xcodec
    """,
}
FAMILY_KINDS: dict[str, ModelKind] = {
    family: kind for kind, families in _FAMILIES.items() for family in families.split()
}
"""The usual kind of each family."""

_DECODABLE = """
    bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert
    reformer rembert roberta roberta-prelayernorm roc_bert roformer xlm-roberta
    xlm-roberta-xl xmod
"""
DECODABLE = frozenset(_DECODABLE.split())
"""Encoders that are causal if the config sets `is_decoder`."""

_LAYER_NORMS = """
biogpt bloom codegen ctrl falcon fuyu git gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox
gpt_neox_japanese
gptj jais2 mpt openai-gpt opt phi starcoder2
"""
LAYER_NORMS = frozenset(_LAYER_NORMS.split())
"""Families whose layer norms a CPU cannot compute if weights are in the other 16-bit format.

Autocast casts the input of such a norm, but not its weights. A GPU computes it in float32.
"""

_CAUSAL_HEAD = re.compile(
    r"(ForCausalLM|LMHeadModel|DoubleHeadsModel|ForConditionalGeneration|ModelWithLMHead)$"
)
_LABEL_HEAD = re.compile(
    r"For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|RewardModel)$"
)


def kind_of(config: Mapping[str, Any]) -> ModelKind | None:
    """Return the kind of model a config describes, or None for a family that is not listed."""
    kind = FAMILY_KINDS.get(str(config.get("model_type")))
    if kind == "encoder_decoder" and config.get("is_encoder_decoder") is False:
        # The decoder was saved alone, as with BartForCausalLM.
        return "causal"
    if kind == "causal" and config.get("is_encoder_decoder") is True:
        return "encoder_decoder"
    if kind == "encoder" and config.get("is_decoder") is True:
        return "causal" if config["model_type"] in DECODABLE else kind
    return _kind_by_head(config) if kind == "causal" else kind


def _kind_by_head(config: Mapping[str, Any]) -> ModelKind:
    """Return the kind of a causal family by its saved head: a missing one would be random."""
    names = config.get("architectures")
    heads = [head for head in names if isinstance(head, str)] if isinstance(names, list) else []
    if not heads or any(map(_CAUSAL_HEAD.search, heads)):
        return "causal"
    if any(map(_LABEL_HEAD.search, heads)):
        return "classifier"
    is_bare = all(head.endswith("Model") for head in heads)
    # A head tied to the embeddings exists anyway.
    return "embedding" if is_bare and config.get("tie_word_embeddings") is False else "causal"
