"""Python that loads a model or an adapter, for model cards: by what the model gives.

Fields in braces are filled in by `model_card`.
"""

_LOAD_TEXT_MODEL = {
    "model": """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
""",
    "adapter": """\
from peft import PeftModel
from transformers import {auto}AutoModelForCausalLM, AutoTokenizer{imports}

{config}base = AutoModelForCausalLM.from_pretrained("{base}"{how})
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
{rows}model = PeftModel.from_pretrained(base, "path/to/this/folder")
""",
}
_READ_PROMPT = """
inputs = tokenizer("A text", return_tensors="pt")
answer = tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)
"""
_LOAD_REWRITING_MODEL = {
    "model": """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
{read}""",
    "adapter": """\
from peft import PeftModel
from transformers import {auto}AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig{imports}

{config}base = AutoModelForSeq2SeqLM.from_pretrained("{base}"{how})
base.generation_config = GenerationConfig.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
{rows}model = PeftModel.from_pretrained(base, "path/to/this/folder")
{read}""",
}
_LOAD_SCORE_MODEL = {
    "model": """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
{read}""",
    "adapter": """\
from peft import PeftModel
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer{imports}

config = AutoConfig.from_pretrained("path/to/this/folder")
base = AutoModelForSequenceClassification.from_pretrained(
    "{base}", config=config, ignore_mismatched_sizes=True{how}
)
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
{rows}model = PeftModel.from_pretrained(base, "path/to/this/folder")
{read}""",
}
_LOAD_TOKEN_MODEL = {
    kind: example.replace("SequenceClassification", "TokenClassification")
    for kind, example in _LOAD_SCORE_MODEL.items()
}
_LOAD_VECTOR_MODEL = {
    "model": """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
{read}""",
    "adapter": """\
from sentence_transformers import SentenceTransformer

# This also loads the base model, which adapter_config.json names.
model = SentenceTransformer("path/to/this/folder")
{read}""",
}
_READ_IMAGE = """
from PIL import Image

turns = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "A question"}]}
]
text = processor.apply_chat_template(turns, add_generation_prompt=True)
inputs = processor(text=text, images=[Image.open("image.png")], return_tensors="pt")
answer = processor.decode(model.generate(**inputs)[0], skip_special_tokens=True)
"""
_LOAD_IMAGE_MODEL = {
    "model": f"""\
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("path/to/this/folder")
processor = AutoProcessor.from_pretrained("path/to/this/folder")
{_READ_IMAGE.replace("{", "{{").replace("}", "}}")}""",
    "adapter": f"""\
from peft import PeftModel
from transformers import {{auto}}AutoModelForImageTextToText, AutoProcessor{{imports}}

{{config}}base = AutoModelForImageTextToText.from_pretrained("{{base}}"{{how}})
processor = AutoProcessor.from_pretrained("path/to/this/folder")
tokenizer = processor.tokenizer
{{rows}}model = PeftModel.from_pretrained(base, "path/to/this/folder")
{_READ_IMAGE.replace("{", "{{").replace("}", "}}")}""",
}
LOAD_EXAMPLES = {
    "text": _LOAD_TEXT_MODEL,
    "images": _LOAD_IMAGE_MODEL,
    "rewrite": _LOAD_REWRITING_MODEL,
    "score": _LOAD_SCORE_MODEL,
    "label": _LOAD_SCORE_MODEL,
    "number": _LOAD_SCORE_MODEL,
    "steps": _LOAD_TOKEN_MODEL,
    "entities": _LOAD_TOKEN_MODEL,
    "vector": _LOAD_VECTOR_MODEL,
    "relevance": _LOAD_SCORE_MODEL,
}
_READ_SCORE = """
turns = [{"role": "user", "content": "A question"}, {"role": "assistant", "content": "An answer"}]
inputs = tokenizer.apply_chat_template(turns, return_tensors="pt", return_dict=True)
score = model(**inputs).logits[0, 0].item()
"""
READ_CHAT = """
turns = [{"role": "user", "content": "A text"}]
inputs = tokenizer.apply_chat_template(
    turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
"""
READ_TEXT = """
inputs = tokenizer("A text", return_tensors="pt")
"""
_READ_LABEL = f"""{READ_CHAT}\
names, scores = model.config.id2label, model(**inputs).logits[0]
if model.config.problem_type == "single_label_classification":
    labels = [names[scores.argmax().item()]]
else:
    given = scores.sigmoid() >= model.config.label_threshold
    labels = [name for number, name in names.items() if given[number]]
"""
_READ_NUMBER = f"""{READ_CHAT}\
scores, config = model(**inputs).logits[0].tolist(), model.config
numbers = {{
    config.id2label[i]: score * config.target_deviations[i] + config.target_means[i]
    for i, score in enumerate(scores)
}}
"""
_READ_STEPS = """
turns = [{"role": "user", "content": "A question"}]
prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
ids, ends = tokenizer(prompt, add_special_tokens=False)["input_ids"], []
for step in ["The first step", "The second step"]:
    # Each step ends with a line break, and is tokenised by itself.
    ids += tokenizer(f"{step}\\n", add_special_tokens=False)["input_ids"]
    ends.append(len(ids) - 1)
scores = model(input_ids=torch.tensor([ids])).logits[0, ends].softmax(-1)
likely_right = scores[:, model.config.label2id["right"]].tolist()
"""
_READ_ENTITIES = r"""
import re

text = "A text"
inputs = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
offsets = inputs.pop("offset_mapping")[0].tolist()
given = model(**inputs).logits[0].argmax(-1).tolist()
tags = []
for word in re.finditer(r"\w+|[^\w\s]", text):
    own = [i for i, (start, end) in enumerate(offsets) if start < word.end() and end > word.start()]
    # An encoder says what a word is at its first token, a causal model at its last.
    token = own[0] if model.config.tagged_at == "first" else own[-1]
    tags.append((word[0], model.config.id2label[given[token]]))
"""
_READ_VECTORS = """
query = model.encode_query("A query")
passages = model.encode_document(["A passage", "Another one"])
similarities = model.similarity(query, passages)
"""
_READ_RELEVANCE = """
inputs = tokenizer("A query", "A passage", truncation=True, return_tensors="pt")
relevance = model(**inputs).logits[0, 0].sigmoid().item()
# Or, with sentence-transformers: CrossEncoder("path/to/this/folder").rank("A query", ["A passage"])
"""
READ = {
    "rewrite": _READ_PROMPT,
    "score": _READ_SCORE,
    "label": _READ_LABEL,
    "number": _READ_NUMBER,
    "steps": _READ_STEPS,
    "entities": _READ_ENTITIES,
    "vector": _READ_VECTORS,
    "relevance": _READ_RELEVANCE,
}
