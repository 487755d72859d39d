"""What to do about settings of other tools that recipes do not have."""

CLUSTER = (
    "How a run is spread over GPUs is not part of a recipe here. If memory is short, choose fewer "
    "bits for the frozen model, or activation checkpointing."
)
KERNELS = (
    "Faster kernels change the speed, not what is learned: leave it out. Attention has a setting "
    "of its own."
)
TRACKING = "The studio draws all metrics itself. Set up notifications in the settings."
FOLDERS = "Each run has its own folder here, and its files are on its page."
LOADING = "Rows are read and tokenised once, and kept for later runs: there is nothing to set."
HUB = "Export the model from the page of the run when it has ended."
TOKENS = "Secrets are not part of a recipe. Enter them in the settings."
REMOTE_CODE = "Allow the code of a model on its page, after reading it."
REVISION = "Download that revision on the Models page, and choose it as the base model."
RESUME = "A run resumes by itself from its newest checkpoint: press Resume on its page."
CONTINUE = (
    "To train an adapter further, choose Continue from run in the form. Adapters from elsewhere "
    "can be merged into their base model, which can then be added on the Models page."
)
ANSWERS = "How a model writes is chosen where it answers: in the chat and in evaluations."
COLUMNS = "Columns are mapped when the dataset is imported, on its own page."
SAMPLE = "Keep fewer rows when you map the dataset."
MIXTURE = "Join datasets into one file before you import it."
VALIDATION_DATA = (
    "A validation part belongs to the dataset: import both files together, as train and validation."
)
TEMPLATE = (
    "Turns are formatted by the chat template of the model, ChatML or plain text. Put another "
    "template into the tokenizer of the model."
)
MASKING = (
    "Only answers are trained on, and all of them. Give answers that are to be read only the "
    "weight 0 in the data, or import texts to train on every token."
)
VOCABULARY = "New tokens enlarge the embeddings by themselves. Name them as New tokens."
REWARDS = (
    "Answers are scored by graders here. Build one on the Graders page, and choose it in the form."
)
ENGINE = "Answers are written by the studio's own engine, in the process that trains."
OPTIMISER_DETAILS = (
    "Betas and epsilon are those of PyTorch here: 0.9, 0.999 and 1e-8. Leave it out, or keep to "
    "the other tool."
)
SCHEDULE_DETAILS = "Schedules have no further settings here: each ends at zero, or stays constant."
OPTIMISER = "Choose an optimizer that the studio has: AdamW suits almost every run."
SCHEDULE = "Choose a schedule that the studio has: cosine is the closest to most."
SAVING = "The studio saves by time, and keeps the newest checkpoints."
EVALUATION = "The studio computes the metrics of the method at each validation."
BEST = "Each method has a metric that picks its best weights."
REFERENCE = "The reference is the model as it was before training."
DEBUGGING = "The numeric health of a run is measured on its page."
PACKING_DETAILS = (
    "Rows are packed by their lengths, and never see each other: nothing is to be set."
)
PADDING = "Batches are padded to their longest row: nothing is to be set."
QUANTISATION = "Choose the frozen model in 8 bits (LLM.int8) or 4 bits (NF4)."
ADAPTER_DETAILS = "Leave it out: the studio's adapters have no such setting."
LAYERS = "Choose Last layers only in the form: layers are counted from the output."
PARTS = (
    "Besides an adapter, the embeddings, the output layer and the norms can be trained: choose "
    "Also train in full."
)
ALGORITHM = "Leave it out, or keep to the other tool: the studio does not have this algorithm."
IMAGES = "How images are scaled and read follows from the model and Max pixels per image."
RESULT = "It says how the job went. A recipe does not need it."
LEARNING_RATES = (
    "The embeddings can have a learning rate of their own, and the B matrices of LoRA (LoRA+). "
    "Other weights share one."
)
BATCHES = "Turn on Retry with smaller batches when out of memory."
DATA_SEED = "One seed decides the order of rows and everything else that is random."
MODEL_CLASS = "The classes of the model and its tokenizer follow from the model's own files."
LENGTHS = "Here, only the whole sequence has a maximum length."
SUBSETS = "A subset and a part of a hub dataset are chosen when it is imported."
NO_PPO = (
    "PPO with a value model does not exist here. GRPO learns from scores of the model's own "
    "answers without one: choose a grader, such as a reward model of the studio."
)
