//! The table of all keys: the one place that says which keys exist, what they accept, their defaults, whether they
//! change the bits of a run, and what they mean.
//!
//! Reading, `--print-config`, the comparison at resume and the page of all keys in the documentation are driven by
//! it. A key may stand here several times with different conditions: its default then depends on another key
//! above it. The table does not know how a value is used.

use super::choice::{
    Backend, DataKind, Isolation, Kernels, LossKind, ModelKind, Offload, Oom, OptimizerKind, Recompute,
    ScheduleKind, StemKind, TrackerKind,
};
use super::value::{ANY, BELOW_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, Type};
use super::{LrScaling, Precision, Reduce, Wire};
use Mark::{Bits, Free};
use dtrain_data::MOST_TOKENS;
use dtrain_engine::models::Lora;
use dtrain_engine::{AdjustLr, NewtonSchulz};
use dtrain_types::{Remirror, ShardLevel};
use std::collections::HashSet;
use std::sync::LazyLock;

/// Whether a key can change the bits of the final state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Changing it makes another run: resuming needs `--fork`.
    Bits,
    /// It may change at every resume.
    Free,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The dotted name.
    pub name: &'static str,
    /// The key above and its values for which this row holds; `None` is always.
    pub when: Option<(&'static str, &'static [&'static str])>,
    /// What it accepts.
    pub accepts: Type,
    /// The default as a user would write it; `None` when the user must give it.
    pub default: Option<&'static str>,
    /// Whether it can change the bits.
    pub mark: Mark,
    /// What it means, in one line.
    pub help: &'static str,
}

impl Key {
    const fn new(
        name: &'static str,
        accepts: Type,
        default: &'static str,
        mark: Mark,
        help: &'static str,
    ) -> Self {
        Self { name, when: None, accepts, default: Some(default), mark, help }
    }

    const fn when(mut self, key: &'static str, values: &'static [&'static str]) -> Self {
        self.when = Some((key, values));
        self
    }

    const fn required(mut self) -> Self {
        self.default = None;
        self
    }

    /// The part before the dot, if there is one.
    #[must_use]
    pub fn section(&self) -> Option<&'static str> {
        self.name.split_once('.').map(|(section, _)| section)
    }
}

const COUNT: Type = Type::Int(1, u32::MAX as i128);
const WHOLE: Type = Type::Int(0, u32::MAX as i128);
const NONE: Type = Type::Choice(&["none"]);
const AUTO: Type = Type::Choice(&["auto"]);
const TEXT_OR_NONE: Type = Type::Either(&[NONE, Type::Text]);
const COUNT_OR_NONE: Type = Type::Either(&[NONE, COUNT]);
const SIZE_OR_NONE: Type = Type::Either(&[NONE, Type::Size]);
const LENGTH_OR_NONE: Type = Type::Either(&[NONE, Type::Length]);
const DROPOUT: Type = Type::Number(&BELOW_ONE);
/// The optimizer that makes momentum orthogonal.
const MUON: &[&str] = &["muon"];
/// The optimizers that have AdamW's moments, of all parameters or some.
const ADAMW: &[&str] = &["adamw", "muon"];
/// The models with convolutions.
const CNNS: &[&str] = &["cnn", "cnn1d", "cnn3d"];
/// The models with recurrent layers.
const RECURRENT: &[&str] = &["lstm", "gru"];
/// Scaled rotary positions.
const SCALED: &[&str] = &["linear", "llama3"];
/// The models of Llama's family.
const LLAMA: &[&str] = &["llama"];
const AUGMENT: Type = Type::Either(&[NONE, Type::List(&Type::Text)]);
const AUGMENT_HELP: &str = "none, or a list of flip | shift | \"shift:2\" | \"crop:24\" | \"resized-crop:24\" | rand-augment, \"rand-augment:N,M\" | jitter, \"jitter:B,C,S\" | erase | mixup, \"mixup:A\" | cutmix, \"cutmix:A\"; training images only, all frames of a clip alike";
const BACKEND_HELP: &str = "what carries gradients: host (shared memory, encrypted links) | nccl (from GPU to GPU, one rank each) | auto: nccl where ranks have GPUs of their own on one host and a test of it has passed, else host";
const BEST_HELP: &str = "which result marks the best: none | val_loss | train_loss; of classes val_accuracy, val_f1, val_precision, val_recall, val_auc, val_ap and that of one, as val_f1[CLASS]; of tokens val_perplexity; of a regression val_rmse, val_mae, val_r2";
const MODEL_KIND_HELP: &str =
    "which model; csv, npy: cnn or cnn3d where a sample has the shape of an image or a volume";
const LOSS_KIND_HELP: &str = "cross_entropy | mse | torch (what a Python program says)";
const OPTIMIZER_HELP: &str = "adamw | lion | muon (hidden matrices; AdamW for all else) | sgd | torch: the one that a Python program brings";
const DECAYS_HELP: &str = "which parameters weight_decay applies to";
/// The first samples, or whole groups by their names.
const HELD_OUT: Type =
    Type::Either(&[Type::Choice(&["scattered", "last"]), Type::List(&Type::Either(&[WHOLE, Type::Text]))]);
const HELD_OUT_HELP: &str = "which samples val_split holds out: scattered | last; or a list of groups, such as [s07, s12], whatever val_split says";
const GROUP_HELP: &str = "what says which samples belong together (subject, patient, video) and are held out together; csv, parquet: a column, by name or number; images, clips: folder (CLASS/GROUP/FILE) | a pattern of names, such as GROUP_* | a column of data.labels; windows: file | folder | a column (UCI-HAR: its subjects)";
/// All data that dtrain reads itself, or a Rust program.
const NOT_TORCH: &[&str] = &[
    "digits",
    "idx",
    "images",
    "tar",
    "parquet_images",
    "clips",
    "csv",
    "parquet",
    "windows",
    "npy",
    "text",
    "tokens",
    "own",
];
const SPLIT: Type = Type::Number(&BELOW_ONE);

/// Every key, in the order in which a configuration is printed.
#[rustfmt::skip] // a table: one row a key
pub static KEYS: &[Key] = &[
    Key::new("name", TEXT_OR_NONE, "none", Free, "run folder runs/NAME; without a name runs are numbered (digits, digits-2)"),
    Key::new("run_dir", TEXT_OR_NONE, "none", Free, "the run folder itself, instead of runs/NAME"),
    Key::new("resume", Type::Either(&[Type::Choice(&["never", "auto"]), Type::Text]), "never", Free,
        "never | auto (start, or go on where the run of this name stopped) | PATH of a run folder"),
    Key::new("seed", Type::Int(0, u64::MAX as i128), "7", Bits, "all randomness of the run follows from it"),
    Key::new("devices", Type::Text, "auto", Free,
        "auto (every GPU where a test of them has passed, else the cores) | cpu | cuda:0,1 (these GPUs) | all (every GPU)"),
    Key::new("ranks", Type::Either(&[AUTO, Type::Int(1, 4096)]), "auto", Free,
        "replicas; auto: one per GPU that devices comes to; on the CPU one per core, at most one per micro-batch"),
    Key::new("threads", Type::Either(&[AUTO, Type::Int(1, 1024)]), "auto", Free,
        "compute threads of a rank, on a GPU those that bring it its batches (8 at most); auto: cores / ranks, for a Python program 1 (its bits depend on it)"),
    Key::new("isolation", Type::Choice(Isolation::NAMES), "process", Free,
        "a rank is a process of its own, or a thread of this one"),
    Key::new("global_batch", COUNT, "64", Bits, "samples in one optimizer step, over all ranks"),
    Key::new("micro_batch", COUNT, "16", Bits, "samples in one forward and backward pass; with batch_size its default is batch_size"),
    Key::new("batch_size", COUNT_OR_NONE, "none", Free,
        "per rank; gives global_batch = batch_size x ranks x accumulation_steps"),
    Key::new("accumulation_steps", COUNT_OR_NONE, "none", Free, "with batch_size: passes a rank adds up before a step (1)"),
    Key::new("epochs", COUNT_OR_NONE, "20", Bits, "passes over the training data; or give steps"),
    Key::new("steps", COUNT_OR_NONE, "none", Bits, "optimizer steps in all, instead of epochs"),
    Key::new("precision", Type::Choice(Precision::NAMES), "f32", Bits,
        "what products, convolutions and attention round their operands to; on CPUs f32 and bf16 (by AMX where there is one; convolutions stay f32), on GPUs all of them; tf32: f32 in memory, and 10 bits of mantissa where a library multiplies large matrices and convolves"),
    Key::new("kernels", Type::Choice(Kernels::NAMES), "auto", Free,
        "what multiplies large matrices and convolves in bf16, f16 and tf32 on GPUs, and does attention in bf16 and f16; auto: cuBLASLt and cuDNN where they are faster, by algorithms that are chosen once and kept with the run; own: dtrain's kernels alone, whose bits no library moves"),
    Key::new("recompute", Type::Choice(Recompute::NAMES), "auto", Free,
        "activation checkpointing: blocks of gpt and gpt2 keep nothing for the backward pass but compute it again, for less memory and the same bits; auto: where a GPU has no room otherwise"),
    Key::new("oom", Type::Choice(Oom::NAMES), "stop", Free,
        "a micro_batch that a GPU has no room for; stop: an error that names one with room; shrink: that one is taken, which changes the bits"),
    Key::new("reduce", Type::Choice(Reduce::NAMES), "exact", Bits,
        "exact: the same bits for any number of ranks; ring: bits depend on it"),
    Key::new("wire", Type::Choice(Wire::NAMES), "f32", Bits,
        "communication dtype: what gradients and their sums are rounded to; bf16: half the bytes between hosts"),
    Key::new("backend", Type::Choice(Backend::NAMES), "auto", Free, BACKEND_HELP).when("reduce", &["exact"]),
    Key::new("backend", Type::Choice(Backend::NAMES), "auto", Bits, BACKEND_HELP).when("reduce", &["ring"]),
    Key::new("isa", Type::Choice(&["auto", "scalar", "avx2", "avx512", "amx"]), "auto", Free, "instruction set of the kernels; amx: AVX-512, and AMX where precision is bf16"),
    Key::new("workers", Type::Int(0, 256), "1", Free, "loader threads of a rank; 0 loads between the steps"),
    Key::new("ema", Type::Either(&[NONE, Type::Number(&BELOW_ONE)]), "none", Bits,
        "moving average of the parameters: the share of it that a step leaves, such as 0.999; it is what is validated, evaluated, predicted with and exported"),
    // Data.
    Key::new("data.kind", Type::Choice(DataKind::NAMES), "digits", Bits, "which reader"),
    Key::new("data.images", Type::Text, "", Bits, "IDX file of training images, plain, .gz or .zst").required().when("data.kind", &["idx"]),
    Key::new("data.labels", Type::Text, "", Bits, "IDX file of their labels").required().when("data.kind", &["idx"]),
    Key::new("data.val_images", TEXT_OR_NONE, "none", Bits, "IDX file of held-out images; none: val_split")
        .when("data.kind", &["idx"]),
    Key::new("data.val_labels", TEXT_OR_NONE, "none", Bits, "IDX file of their labels").when("data.kind", &["idx"]),
    Key::new("data.labels", TEXT_OR_NONE, "none", Bits, "a table (.csv, .tsv; plain, .gz or .zst) of names and labels; none: the folder of an image says which class")
        .when("data.kind", &["images"]),
    Key::new("data.val_labels", TEXT_OR_NONE, "none", Bits, "the same of images for validation, which are in data.val_path, or in data.path; none: val_split")
        .when("data.kind", &["images"]),
    Key::new("data.file_column", Type::Either(&[WHOLE, Type::Text]), "0", Bits, "of data.labels the column of names (data.path has the files; .jpg, .jpeg, .png, .webp may be left out): its name in the header, or its number from 0")
        .when("data.kind", &["images"]),
    Key::new("data.label", Type::Either(&[Type::Choice(&["last"]), WHOLE, Type::Text]), "last", Bits, "of data.labels the column of labels: its name in the header, its number from 0, or last")
        .when("data.kind", &["images"]),
    Key::new("data.inputs", Type::Text, "", Bits, ".npy file of inputs, first axis samples").required().when("data.kind", &["npy"]),
    Key::new("data.targets", Type::Text, "", Bits, ".npy file of targets").required().when("data.kind", &["npy"]),
    Key::new("data.val_inputs", TEXT_OR_NONE, "none", Bits, ".npy file of held-out inputs; none: val_split")
        .when("data.kind", &["npy"]),
    Key::new("data.val_targets", TEXT_OR_NONE, "none", Bits, ".npy file of their targets").when("data.kind", &["npy"]),
    Key::new("data.path", Type::Text, "", Bits, "the file, plain, .gz or .zst; tokens: plain, or a folder with train.bin and val.bin")
        .required().when("data.kind", &["csv", "text", "tokens"]),
    Key::new("data.path", Type::Text, "", Bits, "a Parquet file whose columns are numbers, texts, dates or truth values")
        .required().when("data.kind", &["parquet"]),
    Key::new("data.path", Type::Text, "", Bits, "a folder with one for each class, and in each its images (.jpg, .png, .webp); or one with train/ and val/; with data.labels the folder of the files")
        .required().when("data.kind", &["images"]),
    Key::new("data.path", Type::Text, "", Bits, "a .tar file, or a folder of them, of KEY.jpg (.jpeg, .png, .webp) with KEY.cls, or KEY.json with label or class; or a folder with train/ and val/")
        .required().when("data.kind", &["tar"]),
    Key::new("data.path", Type::Text, "", Bits, "a .parquet file of the Hugging Face Hub, or a folder of them, or one with data/; names that begin with train, validation, val or test say which is which")
        .required().when("data.kind", &["parquet_images"]),
    Key::new("data.label", Type::Text, "label", Bits, "the column of the classes, which are whole numbers").when("data.kind", &["parquet_images"]),
    Key::new("data.path", Type::Text, "", Bits, "a folder with one for each class, and in each its clips: videos (decoded by ffmpeg), folders of frames, or .npy arrays; or one with train/ and val/")
        .required().when("data.kind", &["clips"]),
    Key::new("data.frames", COUNT, "16", Bits, "frames that are taken of the middle of a clip").when("data.kind", &["clips"]),
    Key::new("data.frame_stride", COUNT, "1", Bits, "frames from one that is taken to the next").when("data.kind", &["clips"]),
    Key::new("data.path", Type::Text, "", Bits, "a recording (.csv, .tsv; plain, .gz or .zst), a folder of them, or the folder of UCI-HAR as it is")
        .required().when("data.kind", &["windows"]),
    Key::new("data.length", Type::Int(1, 1 << 24), "128", Bits, "rows of a window").when("data.kind", &["windows"]),
    Key::new("data.stride", Type::Either(&[AUTO, COUNT]), "auto", Bits, "rows from one window to the next; auto: its length, so that none overlap")
        .when("data.kind", &["windows"]),
    Key::new("data.time", Type::Either(&[NONE, WHOLE, Type::Text]), "none", Bits, "the column of the time, by name or number: a number, or a date and time; it never goes back")
        .when("data.kind", &["windows"]),
    Key::new("data.gap", Type::Either(&[NONE, Type::Number(&POSITIVE)]), "none", Bits, "no window goes over a longer time between two rows; in the unit of data.time, of dates seconds")
        .when("data.kind", &["windows"]),
    Key::new("data.har", Type::Choice(&["signals", "features"]), "signals", Bits, "of the folder of UCI-HAR: the signals of its sensors | its 561 features of each window")
        .when("data.kind", &["windows"]),
    Key::new("data.size", Type::Either(&[COUNT, Type::List(&COUNT)]), "64", Bits,
        "what images and frames are scaled to and cut in the middle: a side, or [height, width]; pixels")
        .when("data.kind", &["images", "tar", "parquet_images", "clips"]),
    Key::new("data.colors", Type::Choice(&["rgb", "gray"]), "rgb", Bits, "channels of an image: rgb (3) | gray (1)").when("data.kind", &["images", "tar", "parquet_images", "clips"]),
    Key::new("data.broken", Type::Choice(&["error", "skip"]), "error", Bits,
        "an image or a clip that cannot be decoded, or is too short: error, where it is read | skip: it is left out (all are decoded before the first step)")
        .when("data.kind", &["images", "tar", "parquet_images", "clips"]),
    Key::new("data.cache", SIZE_OR_NONE, "1GiB", Free, "how much each rank keeps of decoded images and clips; none: each is decoded whenever it is read").when("data.kind", &["images", "tar", "parquet_images", "clips"]),
    Key::new("data.val_path", TEXT_OR_NONE, "none", Bits, "a second file for validation; none: val_split (tokens: val.bin of the folder, images, tar, clips: val/ beside train/, parquet_images: its validation or test files, UCI-HAR: test/, if there)")
        .when("data.kind", &["csv", "parquet", "windows", "tokens", "images", "tar", "parquet_images", "clips"]),
    Key::new("data.label", Type::Either(&[Type::Choice(&["last"]), WHOLE, Type::Text]), "last", Bits,
        "label column: its name in the header, its number from 0, or last; of a window the most frequent, of two the earlier")
        .when("data.kind", &["csv", "parquet", "windows"]),
    Key::new("data.header", Type::Either(&[AUTO, Type::Bool]), "auto", Bits, "whether the first line names the columns")
        .when("data.kind", &["csv", "windows"]),
    Key::new("data.skip", WHOLE, "0", Bits, "lines to pass over before the header or the first row").when("data.kind", &["csv", "windows"]),
    Key::new("data.delimiter", Type::Either(&[AUTO, Type::Text]), "auto", Bits, "the character between columns; auto: found out")
        .when("data.kind", &["csv", "windows"]),
    Key::new("data.shape", Type::Either(&[NONE, Type::List(&COUNT)]), "none", Bits, "shape of a row, such as [1, 28, 28]; none: one dimension")
        .when("data.kind", &["csv", "parquet"]),
    Key::new("data.classes", COUNT_OR_NONE, "none", Bits, "number of classes; none: what the labels say").when("data.kind", &["idx", "tar", "parquet_images", "csv", "parquet", "windows", "npy"]),
    Key::new("data.context", COUNT, "128", Bits, "tokens a sample sees; text: bytes").when("data.kind", &["text", "tokens"]),
    Key::new("data.vocabulary", Type::Either(&[AUTO, Type::Int(2, MOST_TOKENS as i128)]), "auto", Bits, "how many token ids there are; auto: as many as the tokenizer.json beside them has, or else 50257, those of GPT-2")
        .when("data.kind", &["tokens"]),
    Key::new("data.packing", Type::Choice(&["off", "on"]), "off", Bits, "on: several conversations share a sample where they fit; off: each has its own (`dtrain tokenize --chat`)")
        .when("data.kind", &["tokens"]),
    Key::new("data.val_split", SPLIT, "0.1", Bits, "share held out for validation, where no held-out file is given")
        .when("data.kind", &["idx", "images", "tar", "parquet_images", "clips", "csv", "parquet", "windows", "npy", "text", "tokens"]),
    Key::new("data.held_out", Type::Choice(&["scattered", "last"]), "scattered", Bits, HELD_OUT_HELP).when("data.kind", &["idx", "tar", "parquet_images", "npy"]),
    Key::new("data.held_out", HELD_OUT, "scattered", Bits, HELD_OUT_HELP).when("data.kind", &["images", "clips", "csv", "parquet", "windows"]),
    Key::new("data.group", Type::Either(&[NONE, WHOLE, Type::Text]), "none", Bits, GROUP_HELP).when("data.kind", &["csv", "parquet"]),
    Key::new("data.group", Type::Either(&[Type::Choice(&["none", "folder"]), Type::Text]), "none", Bits, GROUP_HELP).when("data.kind", &["images", "clips"]),
    Key::new("data.group", Type::Either(&[Type::Choice(&["file", "folder", "none"]), WHOLE, Type::Text]), "file", Bits, GROUP_HELP).when("data.kind", &["windows"]),
    Key::new("data.normalize", Type::Either(&[Type::Choice(&["standard", "none"]), Type::Number(&POSITIVE)]), "standard", Bits,
        "standard (mean 0, deviation 1 of the training part) | none | a factor, such as 0.00392")
        .when("data.kind", &["digits", "idx", "csv", "parquet", "windows", "npy"]),
    Key::new("data.normalize", Type::Either(&[Type::Choice(&["standard", "none"]), Type::Number(&POSITIVE)]), "0.00392156862745098", Bits,
        "a factor (1/255 makes pixels 0 to 1) | none | standard (mean 0, deviation 1 of the training part, for which all images are decoded first)")
        .when("data.kind", &["images", "tar", "parquet_images", "clips"]),
    Key::new("data.normalize_targets", Type::Bool, "true", Bits, "with mse: train on targets of mean 0 and deviation 1; results are in their own unit")
        .when("data.kind", &["csv", "parquet", "windows", "npy"]),
    Key::new("data.columns", Type::Either(&[AUTO, Type::List(&Type::Either(&[WHOLE, Type::Text]))]), "auto", Bits,
        "inputs: auto | names of those to use | [-name] leaves one out | [name:category] takes numbers as words (windows: numbers alone)")
        .when("data.kind", &["csv", "parquet", "windows"]),
    Key::new("data.missing", Type::Choice(&["fill", "refuse"]), "fill", Bits, "a missing input: fill (the mean of the training part; of words: none) | refuse")
        .when("data.kind", &["csv", "parquet", "windows"]),
    Key::new("data.unseen", Type::Choice(&["ignore", "refuse"]), "ignore", Bits, "a word that no training row has: ignore (as if there were none) | refuse")
        .when("data.kind", &["csv", "parquet"]),
    Key::new("data.name", Type::Text, "own", Bits, "what the program that brings the data calls it").when("data.kind", &["own", "torch"]),
    Key::new("data.augment", AUGMENT, "shift", Bits, AUGMENT_HELP).when("data.kind", &["digits"]),
    Key::new("data.augment", AUGMENT, "none", Bits, AUGMENT_HELP).when("data.kind", &["idx", "images", "tar", "parquet_images", "clips", "csv", "parquet", "npy"]),
    // Model.
    Key::new("model.kind", Type::Choice(ModelKind::NAMES), "cnn", Bits, MODEL_KIND_HELP).when("data.kind", &["digits", "idx", "images", "tar", "parquet_images"]),
    Key::new("model.kind", Type::Choice(ModelKind::NAMES), "mlp", Bits, MODEL_KIND_HELP).when("data.kind", &["csv", "parquet", "npy"]),
    Key::new("model.kind", Type::Choice(ModelKind::NAMES), "cnn1d", Bits, MODEL_KIND_HELP).when("data.kind", &["windows"]),
    Key::new("model.kind", Type::Choice(ModelKind::NAMES), "cnn3d", Bits, MODEL_KIND_HELP).when("data.kind", &["clips"]),
    Key::new("model.kind", Type::Choice(ModelKind::NAMES), "gpt", Bits, MODEL_KIND_HELP).when("data.kind", &["text", "tokens"]),
    Key::new("model.kind", Type::Choice(ModelKind::NAMES), "own", Bits, MODEL_KIND_HELP).when("data.kind", &["own"]),
    Key::new("model.kind", Type::Choice(ModelKind::NAMES), "torch", Bits, MODEL_KIND_HELP).when("data.kind", &["torch"]),
    Key::new("model.hidden", Type::List(&COUNT), "[128, 64]", Bits, "width of each hidden layer").when("model.kind", &["mlp"]),
    Key::new("model.channels", Type::List(&COUNT), "[32, 64]", Bits, "channels of each convolution")
        .when("model.kind", &["cnn", "cnn1d"]),
    Key::new("model.channels", Type::List(&COUNT), "[16, 32]", Bits, "channels of each convolution")
        .when("model.kind", &["cnn3d"]),
    Key::new("model.hidden", Type::List(&COUNT), "[128]", Bits, "width of each layer between the blocks and the output")
        .when("model.kind", CNNS),
    Key::new("model.depth", Type::Int(18, 50), "18", Bits, "layers: 18 | 34 | 50, of which the last has bottlenecks").when("model.kind", &["resnet"]),
    Key::new("model.width", COUNT, "64", Bits, "channels of the first group of blocks; each behind has twice as many").when("model.kind", &["resnet"]),
    Key::new("model.stem", Type::Choice(StemKind::NAMES), "auto", Bits, "what stands in front of the blocks: large (7 x 7 with stride 2, max-pooling) | small (3 x 3) | auto: small for images below 64 x 64")
        .when("model.kind", &["resnet"]),
    Key::new("model.patch", Type::Either(&[AUTO, COUNT]), "auto", Bits, "side of the squares that an image is cut into; auto: 16 for large images, less for small ones, so that there are 7 x 7 or more")
        .when("model.kind", &["vit"]),
    Key::new("model.layers", COUNT, "12", Bits, "transformer blocks").when("model.kind", &["vit"]),
    Key::new("model.width", COUNT, "192", Bits, "width of the residual stream: 192 is tiny, 384 small, 768 base; heads must divide it").when("model.kind", &["vit"]),
    Key::new("model.heads", COUNT, "3", Bits, "attention heads: 3 is tiny, 6 small, 12 base").when("model.kind", &["vit"]),
    Key::new("model.layers", COUNT, "4", Bits, "transformer blocks").when("model.kind", &["transformer"]),
    Key::new("model.width", COUNT, "64", Bits, "width of the residual stream; heads must divide it").when("model.kind", &["transformer"]),
    Key::new("model.heads", COUNT, "4", Bits, "attention heads").when("model.kind", &["transformer"]),
    Key::new("model.layers", COUNT, "1", Bits, "recurrent layers").when("model.kind", RECURRENT),
    Key::new("model.width", COUNT, "128", Bits, "width of each layer").when("model.kind", RECURRENT),
    Key::new("model.layers", COUNT, "4", Bits, "transformer blocks").when("model.kind", &["gpt"]),
    Key::new("model.layers", COUNT, "12", Bits, "transformer blocks; medium has 24, large 36, xl 48").when("model.kind", &["gpt2"]),
    Key::new("model.width", COUNT, "128", Bits, "width of the residual stream; heads must divide it").when("model.kind", &["gpt"]),
    Key::new("model.width", COUNT, "768", Bits, "width of the residual stream; medium has 1024, large 1280, xl 1600").when("model.kind", &["gpt2"]),
    Key::new("model.heads", COUNT, "4", Bits, "attention heads").when("model.kind", &["gpt"]),
    Key::new("model.heads", COUNT, "12", Bits, "attention heads; medium has 16, large 20, xl 25").when("model.kind", &["gpt2"]),
    Key::new("model.layers", COUNT, "4", Bits, "transformer blocks").when("model.kind", LLAMA),
    Key::new("model.width", COUNT, "128", Bits, "width of the residual stream: heads times an even number, unless head_width says otherwise").when("model.kind", LLAMA),
    Key::new("model.heads", COUNT, "4", Bits, "attention heads").when("model.kind", LLAMA),
    Key::new("model.kv_heads", Type::Either(&[AUTO, COUNT]), "auto", Bits, "heads of keys and values, which divide heads: each is shared by as many; auto: as many as heads").when("model.kind", LLAMA),
    Key::new("model.head_width", Type::Either(&[AUTO, COUNT]), "auto", Bits, "width of a head, an even number; auto: width / heads").when("model.kind", LLAMA),
    Key::new("model.feed_forward", Type::Either(&[AUTO, COUNT]), "auto", Bits, "width of the feed-forward layers; auto: 8/3 of width, to a multiple of 32").when("model.kind", LLAMA),
    Key::new("model.rope_theta", Type::Number(&POSITIVE), "10000", Bits, "how far apart in a text tokens are told by their places: the longest wave of rotary positions is 2 pi times that").when("model.kind", LLAMA),
    Key::new("model.rope_scaling", Type::Choice(&["none", "linear", "llama3"]), "none", Bits, "how positions are brought nearer to one another: none | linear | llama3 (slow waves alone, as Llama 3.1 has it)").when("model.kind", LLAMA),
    Key::new("model.rope_factor", Type::Number(&POSITIVE), "8", Bits, "how many times nearer").when("model.rope_scaling", SCALED),
    Key::new("model.rope_low_freq_factor", Type::Number(&POSITIVE), "1", Bits, "waves that fit fewer times into model.rope_context are slow").when("model.rope_scaling", &["llama3"]),
    Key::new("model.rope_high_freq_factor", Type::Number(&POSITIVE), "4", Bits, "waves that fit more times into it stay as they are").when("model.rope_scaling", &["llama3"]),
    Key::new("model.rope_context", COUNT, "8192", Bits, "tokens that the model saw at once when it was trained first").when("model.rope_scaling", &["llama3"]),
    Key::new("model.norm_eps", Type::Number(&POSITIVE), "0.00001", Bits, "what norms add to the mean of squares").when("model.kind", LLAMA),
    Key::new("model.qkv_bias", Type::Bool, "false", Bits, "biases of queries, keys and values, as Qwen 2 has them").when("model.kind", LLAMA),
    Key::new("model.qk_norm", Type::Bool, "false", Bits, "norms of the heads of queries and keys, as Qwen 3 has them").when("model.kind", LLAMA),
    Key::new("model.tied", Type::Bool, "false", Bits, "the head is the table of tokens").when("model.kind", LLAMA),
    Key::new("model.lora_rank", COUNT_OR_NONE, "none", Bits, "rank of adapters beside the layers of a model that is begun with, 8 or 16 say: they alone are trained (LoRA); none trains the whole model").when("model.kind", LLAMA),
    Key::new("model.lora_from", TEXT_OR_NONE, "none", Bits, "folder of adapters of PEFT to begin with; its adapter_config.json says rank, alpha, targets and what else is trained").when("model.kind", LLAMA),
    Key::new("model.lora_alpha", Type::Either(&[AUTO, Type::Number(&POSITIVE)]), "auto", Bits, "what an adapter says is multiplied by lora_alpha / lora_rank; auto: twice the rank").when("model.kind", LLAMA),
    Key::new("model.lora_targets", Type::List(&Type::Choice(&Lora::TARGETS)), "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]", Bits, "layers of each block that have an adapter").when("model.kind", LLAMA),
    Key::new("model.lora_also", Type::List(&Type::Text), "[]", Bits, "names of parameters that are trained beside the adapters, such as [\"lm_head.*\"] or [\"*norm*\"]").when("model.kind", LLAMA),
    Key::new("model.kernel", Type::Int(1, 99), "3", Bits, "side of the convolutions' kernels").when("model.kind", CNNS),
    Key::new("model.padding", Type::Int(0, 99), "1", Bits, "zeros around each image").when("model.kind", CNNS),
    Key::new("model.pool", Type::Choice(&["each", "last"]), "each", Bits, "halve images after each convolution, or the last")
        .when("model.kind", CNNS),
    Key::new("model.batch_norm", Type::Bool, "false", Bits, "normalise by the statistics of a micro-batch").when("model.kind", &["mlp"]),
    Key::new("model.batch_norm", Type::Bool, "true", Bits, "normalise by the statistics of a micro-batch").when("model.kind", CNNS),
    Key::new("model.dropout", DROPOUT, "0", Bits, "share of activations dropped while training").when("model.kind", &["mlp", "gpt", "gpt2", "vit", "transformer", "lstm", "gru"]),
    Key::new("model.dropout", DROPOUT, "0.1", Bits, "share of activations dropped while training").when("model.kind", CNNS),
    Key::new("model.init_from", TEXT_OR_NONE, "none", Bits, "FILE.safetensors with the first parameters, or the folder of a model of Hugging Face's; llama and gpt2 also by the names that they have there, and a config.json beside says the other keys of the model"),
    Key::new("model.init_except", Type::List(&Type::Text), "[]", Bits,
        "with init_from: names of tensors that begin anew, such as [\"fc.*\"] for a head with other classes"),
    Key::new("model.freeze", Type::List(&Type::Text), "[]", Bits,
        "names of parameters that stay as they are, such as [\"conv1.*\", \"layer*\"]; their gradients are not computed where nothing in front is trained").when("data.kind", NOT_TORCH),
    // Loss.
    Key::new("loss.kind", Type::Choice(LossKind::NAMES), "cross_entropy", Bits, LOSS_KIND_HELP).when("data.kind", NOT_TORCH),
    Key::new("loss.kind", Type::Choice(LossKind::NAMES), "torch", Bits, LOSS_KIND_HELP).when("data.kind", &["torch"]),
    Key::new("loss.label_smoothing", Type::Number(&BELOW_ONE), "0", Bits, "share of a target spread over all classes")
        .when("loss.kind", &["cross_entropy"]),
    Key::new("loss.class_weights", Type::Either(&[Type::Choice(&["none", "balanced"]), Type::List(&Type::Number(&NOT_NEGATIVE))]),
        "none", Bits, "none | balanced (by the class counts of the training data) | one number per class")
        .when("loss.kind", &["cross_entropy"]),
    Key::new("loss.ignore_index", Type::Either(&[NONE, Type::Int(i64::MIN as i128, i64::MAX as i128)]), "none", Bits,
        "targets with this label count nowhere")
        .when("loss.kind", &["cross_entropy"]),
    // Optimizer.
    Key::new("optimizer.kind", Type::Choice(OptimizerKind::NAMES), "adamw", Bits, OPTIMIZER_HELP),
    Key::new("optimizer.lr", Type::Number(&POSITIVE), "2e-3", Bits, "peak learning rate").when("optimizer.kind", &["adamw"]),
    Key::new("optimizer.lr", Type::Number(&POSITIVE), "3e-4", Bits, "peak learning rate, some tenth of what suits AdamW").when("optimizer.kind", &["lion"]),
    Key::new("optimizer.lr", Type::Number(&POSITIVE), "0.02", Bits, "peak learning rate of matrices of hidden layers").when("optimizer.kind", MUON),
    Key::new("optimizer.lr", Type::Number(&POSITIVE), "0.05", Bits, "peak learning rate").when("optimizer.kind", &["sgd"]),
    Key::new("optimizer.lr", Type::Number(&POSITIVE), "1", Bits, "what the learning rates of the optimizer are multiplied by at the peak")
        .when("optimizer.kind", &["torch"]),
    Key::new("optimizer.beta1", Type::Number(&BELOW_ONE), "0.9", Bits, "decay of the first moment").when("optimizer.kind", ADAMW),
    Key::new("optimizer.beta2", Type::Number(&BELOW_ONE), "0.999", Bits, "decay of the second moment").when("optimizer.kind", ADAMW),
    Key::new("optimizer.beta1", Type::Number(&BELOW_ONE), "0.9", Bits, "share of the momentum in the direction").when("optimizer.kind", &["lion"]),
    Key::new("optimizer.beta2", Type::Number(&BELOW_ONE), "0.99", Bits, "decay of the momentum").when("optimizer.kind", &["lion"]),
    Key::new("optimizer.eps", Type::Number(&POSITIVE), "1e-8", Bits, "added to the root of the second moment").when("optimizer.kind", ADAMW),
    Key::new("optimizer.weight_decay", Type::Number(&NOT_NEGATIVE), "0.01", Bits, "decoupled decay, times the learning rate")
        .when("optimizer.kind", &["adamw"]),
    Key::new("optimizer.weight_decay", Type::Number(&NOT_NEGATIVE), "0.1", Bits, "decoupled decay, times the learning rate")
        .when("optimizer.kind", &["lion", "muon"]),
    Key::new("optimizer.momentum", Type::Number(&BELOW_ONE), "0.9", Bits, "share of the last update kept").when("optimizer.kind", &["sgd"]),
    Key::new("optimizer.momentum", Type::Number(&BELOW_ONE), "0.95", Bits, "decay of the momentum").when("optimizer.kind", MUON),
    Key::new("optimizer.nesterov", Type::Bool, "true", Bits, "look ahead along the momentum").when("optimizer.kind", MUON),
    Key::new("optimizer.nesterov", Type::Bool, "false", Bits, "look ahead along the momentum").when("optimizer.kind", &["sgd"]),
    Key::new("optimizer.weight_decay", Type::Number(&NOT_NEGATIVE), "0", Bits, "added to the gradient")
        .when("optimizer.kind", &["sgd"]),
    Key::new("optimizer.adamw_lr_factor", Type::Number(&NOT_NEGATIVE), "0.1", Bits, "AdamW's learning rate for all else, as a share of lr")
        .when("optimizer.kind", MUON),
    Key::new("optimizer.matrices", Type::List(&Type::Text), "[]", Bits,
        "names of the matrices that Muon updates, such as [\"blocks.*\"]; none: all but embeddings and the output layer").when("optimizer.kind", MUON),
    Key::new("optimizer.adjust_lr_fn", Type::Choice(AdjustLr::NAMES), "original", Bits,
        "what lr is multiplied by: original (sqrt(max(1, rows / columns))) | match_rms_adamw (0.2 sqrt(max(rows, columns)): lr as for AdamW)")
        .when("optimizer.kind", MUON),
    Key::new("optimizer.ns_steps", Type::Int(1, NewtonSchulz::MOST_STEPS as i128), "5", Bits, "steps of the Newton-Schulz iteration")
        .when("optimizer.kind", MUON),
    Key::new("optimizer.ns_coefficients", Type::List(&Type::Number(&ANY)), "[3.4445, -4.775, 2.0315]", Bits, "its three coefficients")
        .when("optimizer.kind", MUON),
    Key::new("optimizer.ns_eps", Type::Number(&POSITIVE), "1e-7", Bits, "the least norm that a momentum is divided by").when("optimizer.kind", MUON),
    Key::new("optimizer.decays", Type::Choice(&["matrices", "all"]), "matrices", Bits, DECAYS_HELP).when("data.kind", NOT_TORCH),
    Key::new("optimizer.decays", Type::Choice(&["matrices", "all"]), "all", Bits, DECAYS_HELP).when("data.kind", &["torch"]),
    Key::new("optimizer.clip_norm", Type::Either(&[NONE, Type::Number(&POSITIVE)]), "none", Bits, "largest norm of the whole gradient"),
    Key::new("optimizer.lr_factors", Type::List(&Type::Text), "[]", Bits,
        "groups of parameters by their names: [\"body.*=0.1\", \"*.bias=2\"] multiplies the learning rate of each; the first that fits counts"),
    Key::new("optimizer.no_decay", Type::List(&Type::Text), "[]", Bits,
        "names of parameters that never decay, such as [\"*.bias\", \"*norm*\"]"),
    Key::new("optimizer.updates_before", WHOLE, "0", Bits,
        "of a fork with --keep-optimizer: updates that the optimizer's state in model.init_from has seen"),
    Key::new("optimizer.lr_scaling", Type::Choice(LrScaling::NAMES), "none", Bits,
        "multiply lr by global_batch / lr_base_batch (linear) or its root (sqrt)"),
    Key::new("optimizer.lr_base_batch", COUNT, "64", Bits, "the global batch that lr was chosen for"),
    // Schedule.
    Key::new("schedule.kind", Type::Choice(ScheduleKind::NAMES), "cosine", Bits, "cosine | linear | one_cycle | constant | step"),
    Key::new("schedule.warmup", LENGTH_OR_NONE, "1 epoch", Bits, "the learning rate climbs from 0 over it: \"1 epoch\", \"100 steps\", none")
        .when("schedule.kind", &["cosine", "linear", "constant", "step"]),
    Key::new("schedule.min_factor", Type::Number(&FRACTION), "0", Bits, "share of lr that is left at the end")
        .when("schedule.kind", &["cosine", "linear"]),
    Key::new("schedule.peak", Type::Number(&FRACTION), "0.3", Bits, "share of all steps after which lr is reached").when("schedule.kind", &["one_cycle"]),
    Key::new("schedule.first_factor", Type::Number(&FRACTION), "0.04", Bits, "share of lr at the beginning").when("schedule.kind", &["one_cycle"]),
    Key::new("schedule.min_factor", Type::Number(&FRACTION), "4e-6", Bits, "share of lr that is left at the end").when("schedule.kind", &["one_cycle"]),
    Key::new("schedule.every", Type::Length, "10 epochs", Bits, "how often the learning rate drops").when("schedule.kind", &["step"]),
    Key::new("schedule.factor", Type::Number(&POSITIVE), "0.1", Bits, "what it is multiplied by").when("schedule.kind", &["step"]),
    // Validation.
    Key::new("validation.every", LENGTH_OR_NONE, "1 epoch", Free, "\"1 epoch\", \"500 steps\", none; the end is always validated"),
    Key::new("validation.samples", Type::Either(&[Type::Choice(&["all"]), COUNT]), "all", Free,
        "on how many of the samples that are held out: all, or so many from all over, the same each time; `dtrain eval` takes all"),
    // Checkpoints.
    Key::new("checkpoint.every", LENGTH_OR_NONE, "1 epoch", Free, "\"1 epoch\", \"200 steps\", none; one is always written at the end"),
    Key::new("checkpoint.keep", COUNT, "3", Free, "how many of the newest stay, besides the best"),
    Key::new("checkpoint.best", TEXT_OR_NONE, "val_accuracy", Free, BEST_HELP).when("loss.kind", &["cross_entropy"]),
    Key::new("checkpoint.best", TEXT_OR_NONE, "val_loss", Free, BEST_HELP).when("loss.kind", &["mse", "torch"]),
    // Early stopping.
    Key::new("stop.patience", COUNT_OR_NONE, "none", Free,
        "the run ends when so many validations in a row (see validation.every) have not improved stop.metric"),
    Key::new("stop.metric", Type::Either(&[AUTO, Type::Text]), "auto", Free,
        "what has to improve, named as in checkpoint.best; auto: that of checkpoint.best, else val_loss"),
    Key::new("stop.min_delta", Type::Number(&NOT_NEGATIVE), "0", Free, "an improvement is larger than this"),
    // The world.
    Key::new("min_ranks", Type::Int(1, 4096), "1", Free, "with fewer ranks left the run stops (exit code 3)"),
    Key::new("max_restarts", WHOLE, "10", Free, "a lost rank is started again, at most so often in 60 s; isolation=process only"),
    Key::new("join_timeout", Type::Time, "60s", Free, "wait this long for all ranks, then start with min_ranks"),
    Key::new("detect", Type::Time, "1s", Free, "a silent rank is given up after this; all other timeouts follow"),
    Key::new("master_timeout", Type::Either(&[AUTO, Type::Time]), "auto", Free,
        "wait this long for a supervisor that stands still, then ranks end; auto: 60s on one host, 10m on several"),
    Key::new("standby", Type::Choice(&["off", "on"]), "on", Free, "on: where the host that leads is lost, another one that sees the run's folder leads; no effect on one host, nor with reduce=ring"),
    Key::new("state", Type::Choice(&["auto", "replicated", "sharded"]), "auto", Free, "sharded: each rank keeps the optimizer state of some shards alone, and the bits stay the same; auto: where the GPUs of this host have no room for whole states; on the CPU it is for ranks of several hosts"),
    Key::new("offload", Type::Choice(Offload::NAMES), "auto", Free,
        "on GPUs, where parameters, gradients and the optimizer's state of a Python program lie, with the same bits; none: on the GPU; state: in the host's memory, which takes less of the GPU's; auto: on the GPU where dtrain finds NVRTC and has the optimizer there")
        .when("data.kind", &["torch"]),
    Key::new("shard", Type::Choice(ShardLevel::NAMES), "optimizer", Free, "with state=sharded, of what each rank keeps its shards alone: optimizer: the optimizer's state; gradients: those too, which travel in windows while they are computed; parameters: and the parameters, which come when a pass needs them; the last two for models made of stages"),
    Key::new("redundancy", Type::Either(&[AUTO, Type::Int(1, 64)]), "auto", Free, "how many ranks keep each shard: so many may be lost but one; auto: 2, or 1 where there is one rank; no effect where each keeps all"),
    Key::new("remirror", Type::Choice(Remirror::NAMES), "now", Free, "when a lost rank's shards have as many holders again; now: before the next step; lazy: when a rank has come in its place, so that less is copied before the next step, and until then one rank fewer may be lost"),
    Key::new("verify", WHOLE, "0", Free, "compare the state digests of all ranks every N steps; 0: at copies and checkpoints only"),
    Key::new("balance", Type::Choice(&["off", "on"]), "off", Free, "on: a rank that is slower gets fewer micro-batches; the bits stay the same"),
    Key::new("trusted_network", Type::Bool, "false", Free, "allow plain traffic between hosts, which is what backend=nccl has; no effect on one host"),
    Key::new("profile", COUNT_OR_NONE, "none", Free, "each rank writes down where the time of its newest N steps goes, see --profile; not kept for a resume"),
    Key::new("bucket_bytes", SIZE_OR_NONE, "4MiB", Free, "how much of a gradient is sent to other hosts, or over NCCL, at once while the rest is computed; none: all of it when it is computed; no effect on CPU ranks of one host, nor with reduce=ring"),
    // Watching.
    Key::new("track", Type::Either(&[NONE, Type::List(&Type::Choice(TrackerKind::NAMES))]), "[tensorboard]", Free,
        "where the curves go: a list of tensorboard (files in RUN/tb) | mlflow (its REST interface) | wandb (offline files in RUN/wandb, for `wandb sync`); none"),
    Key::new("mlflow.uri", TEXT_OR_NONE, "none", Free, "the tracking server, such as http://127.0.0.1:5000; none: MLFLOW_TRACKING_URI"),
    Key::new("mlflow.experiment", TEXT_OR_NONE, "none", Free, "the experiment, which is made if it is not there; none: MLFLOW_EXPERIMENT_NAME, else dtrain"),
    Key::new("wandb.project", TEXT_OR_NONE, "none", Free, "the project of Weights & Biases; none: WANDB_PROJECT, else dtrain"),
    Key::new("wandb.entity", TEXT_OR_NONE, "none", Free, "the user or team there; none: WANDB_ENTITY, else who syncs"),
    Key::new("metrics.listen", TEXT_OR_NONE, "none", Free, "HOST:PORT where Prometheus may read /metrics, such as 127.0.0.1:9400; port 0: a free one; anybody who reaches it may read"),
];

/// Every name once, in the order of the table.
pub fn names() -> impl Iterator<Item = &'static str> {
    static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let mut seen = HashSet::new();
        KEYS.iter().map(|key| key.name).filter(|name| seen.insert(*name)).collect()
    });
    NAMES.iter().copied()
}

/// Whether a section of that name exists.
#[must_use]
pub fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.section() == Some(name))
}
