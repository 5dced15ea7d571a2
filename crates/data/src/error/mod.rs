//! What can be wrong with data: each error names the file, the place in it, what was expected and what was found.
//!
//! Nothing is printed here; [`DataError::hint`] says what a user can do about it (`hint.rs`).

mod hint;

use crate::LabelsError;
use crate::ShardsError;
use crate::VideoError;
use crate::recordings::RecordingError;
use dtrain_types::{MicroBatch, Step, counted};
use std::io;
use std::path::{Path, PathBuf};

/// Why data cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file is not there.
    #[error("{} does not exist", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// What this kind of data set is made of.
        needs: &'static str,
    },
    /// The system cannot read a file, or its compression is broken.
    #[error("cannot read {}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file does not begin as its format says.
    #[error("{} begins with {got}, expected {expected}", file.display())]
    WrongMagic {
        /// The file.
        file: PathBuf,
        /// What the format begins with.
        expected: &'static str,
        /// What the file begins with.
        got: String,
    },
    /// A file is shorter or longer than its own header says.
    #[error("{} holds {got} bytes, expected {expected}", file.display())]
    WrongLength {
        /// The file.
        file: PathBuf,
        /// Bytes by its header, uncompressed.
        expected: u64,
        /// Bytes found, uncompressed; when there are too many, at least so many.
        got: u64,
    },
    /// A header that cannot be understood.
    #[error("the header of {} is not understood: {problem}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An array of a type that is not read here.
    #[error("{} holds elements of type {got}, expected {expected}", file.display())]
    ElementType {
        /// The file.
        file: PathBuf,
        /// The types that are read.
        expected: &'static str,
        /// The type found.
        got: String,
    },
    /// Inputs and targets are not of the same number.
    #[error("{} has {} but {} has {}", inputs_file.display(), counted(*inputs, "sample"), targets_file.display(), counted(*targets, "target"))]
    CountMismatch {
        /// The file of the inputs.
        inputs_file: PathBuf,
        /// Its samples.
        inputs: u64,
        /// The file of the targets.
        targets_file: PathBuf,
        /// Its targets.
        targets: u64,
    },
    /// Training and validation samples differ in shape.
    #[error("samples of {} have shape {got:?}, expected {expected:?}", file.display())]
    Shape {
        /// The file.
        file: PathBuf,
        /// The shape of the training samples, or the one asked for.
        expected: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// Samples to be predicted of another shape than those of training.
    #[error("samples of {} have shape {got:?}, and the model was trained on {expected:?}", file.display())]
    OtherShape {
        /// The file.
        file: PathBuf,
        /// The shape of the training samples.
        expected: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// Targets of another shape than those of training.
    #[error("{} has targets of shape {got:?}, expected {} a sample", file.display(), counted(*expected, "number"))]
    TargetShape {
        /// The file.
        file: PathBuf,
        /// Numbers that one sample has.
        expected: usize,
        /// The shape of one target.
        got: Vec<usize>,
    },
    /// A label that is no class of a trained model.
    #[error("{} row {row}: {label} is no class of the model", file.display())]
    NoClass {
        /// The file.
        file: PathBuf,
        /// Row, from 1.
        row: u64,
        /// The label.
        label: f64,
        /// The number of classes.
        classes: u32,
    },
    /// An array whose elements are no token ids for a trained model.
    #[error("{} {problem}", file.display())]
    OtherIds {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
        /// What to do with it.
        instead: String,
    },
    /// A file that is to be an array, and is none.
    #[error("{} is no array", file.display())]
    NoArray {
        /// The file.
        file: PathBuf,
        /// What it may be.
        needs: &'static str,
    },
    /// A row with another number of columns than the rows before it.
    #[error("{} line {line}: {}, expected {expected}", file.display(), counted(*got, "column"))]
    RaggedRow {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// Columns of the first row.
        expected: usize,
        /// Columns of this one.
        got: usize,
    },
    /// A field in quotes without an end.
    #[error("{} line {line}: a quote is not closed", file.display())]
    OpenQuote {
        /// The file.
        file: PathBuf,
        /// The first line of the row, from 1.
        line: u64,
    },
    /// A field that is no number.
    #[error("{} line {line}, column {column}{}: {text:?} is not a number", file.display(), named(name))]
    NotANumber {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// Column, from 1.
        column: usize,
        /// The name of the column, if the table has a header.
        name: Option<String>,
        /// The field.
        text: String,
    },
    /// A field of a table that is infinite or not a number.
    #[error("{} line {line}, column {column}{}: the value is {value}", file.display(), named(name))]
    FieldNotFinite {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// Column, from 1.
        column: usize,
        /// The name of the column, if the table has a header.
        name: Option<String>,
        /// The value.
        value: f64,
    },
    /// No word where one is needed.
    #[error("{} line {line}, column {column}: the word is missing", file.display())]
    MissingWord {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// The column's name, or its number from 1.
        column: String,
    },
    /// A number that is infinite or not a number; it would spoil every parameter.
    #[error("{} row {row}, element {element}: the value is {value}", file.display())]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// Row, from 1 (a line of a text file).
        row: u64,
        /// Element of the row, from 1.
        element: usize,
        /// The value.
        value: f64,
    },
    /// A word that no training row has, where such words are refused.
    #[error("{} line {line}, column {column}: {text:?} is in no row of the training table", file.display())]
    UnseenWord {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// The column's name, or its number from 1.
        column: String,
        /// The word.
        text: String,
    },
    /// A table to be predicted whose columns are not those of training.
    #[error("{} line {line}: {problem}", file.display())]
    OtherColumns {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// What differs.
        problem: String,
    },
    /// A table of which no column is left as an input.
    #[error("{} has no column of inputs: {columns}", file.display())]
    NoInputs {
        /// The file.
        file: PathBuf,
        /// What became of each.
        columns: String,
    },
    /// A column that the table does not have.
    #[error("{} has no column {column}, only {columns}", file.display())]
    NoSuchColumn {
        /// The file.
        file: PathBuf,
        /// The column asked for.
        column: String,
        /// The columns there are.
        columns: String,
    },
    /// A label that is no whole number.
    #[error("{} row {row}: label {text} is not a whole number from 0", file.display())]
    LabelNotInteger {
        /// The file.
        file: PathBuf,
        /// Row, from 1 (a line of a text file).
        row: u64,
        /// The label.
        text: String,
    },
    /// A label beyond the number of classes.
    #[error("{} row {row}: label {label} is out of range for {}", file.display(), counted(*classes, "class"))]
    LabelOutOfRange {
        /// The file.
        file: PathBuf,
        /// Row, from 1 (a line of a text file).
        row: u64,
        /// The label.
        label: i64,
        /// The number of classes, or the most that are taken from labels alone.
        classes: u32,
    },
    /// A folder has no folder for each class.
    #[error("{} has no folders: one for each class is wanted", folder.display())]
    NoClassFolders {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder of a class that the training images do not have.
    #[error("{} is no class of the training images", folder.display())]
    UnknownClassFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder without images.
    #[error("{} has no images", folder.display())]
    NoImages {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder without clips.
    #[error("{} has no clips", folder.display())]
    NoClips {
        /// The folder.
        folder: PathBuf,
    },
    /// A video that cannot be decoded.
    #[error("{}: {why}", file.display())]
    Video {
        /// The file.
        file: PathBuf,
        /// What is wrong with it, or with the program that decodes it.
        why: VideoError,
    },
    /// A clip with fewer frames than are taken of it.
    #[error("{} has {}, and {needed} are needed", clip.display(), counted(*has, "frame"))]
    ShortClip {
        /// The clip.
        clip: PathBuf,
        /// Its frames.
        has: u64,
        /// As many are needed, from the first to the last that is taken.
        needed: u64,
    },
    /// An array that is no clip.
    #[error("{} has shape {got:?}, and a clip is [frames, height, width] or [frames, height, width, 1 or 3]", file.display())]
    NoClipArray {
        /// The file.
        file: PathBuf,
        /// Its shape.
        got: Vec<usize>,
    },
    /// A file that cannot be decoded.
    #[error("{}: {reason}", file.display())]
    Picture {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nothing in a file.
    #[error("{} holds no sample", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A part of a file of tokens that is shorter than one window.
    #[error("the {part} part of {} has {got} {unit}, fewer than context + 1 = {needed}", file.display())]
    TooShort {
        /// The file.
        file: PathBuf,
        /// Training or validation.
        part: &'static str,
        /// Its tokens.
        got: u64,
        /// What its tokens are: bytes of a text, or token ids.
        unit: &'static str,
        /// Tokens that one sample needs.
        needed: u64,
    },
    /// A file that cannot be one of token ids.
    #[error("{} is {found}, expected a file of token ids", file.display())]
    NotTokens {
        /// The file.
        file: PathBuf,
        /// What it is.
        found: &'static str,
        /// What to do with it.
        instead: &'static str,
    },
    /// A file of token ids that ends inside one.
    #[error("{} holds {bytes} bytes, no multiple of the {width} of a token id", file.display())]
    HalfToken {
        /// The file.
        file: PathBuf,
        /// Its bytes.
        bytes: u64,
        /// Those of one id.
        width: u64,
    },
    /// What lies beside token ids is no tokenizer, or none for such ids.
    #[error("{} is no tokenizer of these ids: {problem}", file.display())]
    NoTokenizer {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// What is read as documents has none.
    #[error("{}{}: {problem}", file.display(), line.map_or_else(String::new, |line| format!(" line {line}")))]
    NoDocument {
        /// The file.
        file: PathBuf,
        /// The line, or the row of a table, from 1.
        line: Option<u64>,
        /// What is wrong with it.
        problem: String,
    },
    /// No example of a file has anything to learn where its sample ends.
    #[error("no example of {} has anything to learn in its first {tokens} tokens", file.display())]
    NothingLearnt {
        /// The mask.
        file: PathBuf,
        /// How many of an example are looked at.
        tokens: usize,
    },
    /// A mask of examples that does not fit the ids beside it.
    #[error("{}: {problem}", file.display())]
    NoMask {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A token id beyond the vocabulary.
    #[error("{} position {position}: token id {id} is out of range for a vocabulary of {vocabulary}", file.display())]
    IdOutOfRange {
        /// The file.
        file: PathBuf,
        /// Position of the token in the file, from 0 as numpy counts.
        position: u64,
        /// The id.
        id: u32,
        /// How many ids there are.
        vocabulary: u32,
    },
    /// A row without a word that says which others it belongs to.
    #[error("{} line {line}, column {column}: the group is missing", file.display())]
    MissingGroup {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// The column's name, or its number from 1.
        column: String,
    },
    /// A file that does not say of which group it is.
    #[error("{} says no group: {wanted}", file.display())]
    NoGroup {
        /// The file.
        file: PathBuf,
        /// What is lacking.
        wanted: String,
    },
    /// One column that is to be two things.
    #[error("column {column} of {} is to be {roles}", file.display())]
    TwoRoles {
        /// The file.
        file: PathBuf,
        /// The column.
        column: String,
        /// What it is to be.
        roles: &'static str,
    },
    /// A group to be held out that no sample is of.
    #[error("no sample is of group {group:?}{}", only(known))]
    NoSuchGroup {
        /// The group.
        group: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// Whole groups are held out, and none is left to train on.
    #[error("holding out whole groups leaves no sample for training: there {}", if *groups == 1 { "is one group".to_owned() } else { format!("are {groups} groups") })]
    AllGroupsHeldOut {
        /// How many there are.
        groups: usize,
    },
    /// A share held out for validation that leaves one side empty.
    #[error("val_split {fraction} of {rows} rows leaves no row for {lacking}")]
    Split {
        /// The share asked for.
        fraction: f64,
        /// Rows in all.
        rows: u64,
        /// The side without rows.
        lacking: &'static str,
    },
    /// An augmentation that does not fit the samples.
    #[error("augmentation {what} does not fit samples of shape {shape:?}")]
    Augment {
        /// The augmentation.
        what: String,
        /// The shape of a sample.
        shape: Vec<usize>,
    },
    /// An option with a value that makes no sense.
    #[error("{option} is {got}, expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        got: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A plan made for another data set.
    #[error("the plan is for {plan} samples, the data set has {dataset}")]
    PlanMismatch {
        /// Samples in the plan.
        plan: u64,
        /// Samples in the data set.
        dataset: u64,
    },
    /// A sample whose read set no class although the spec promises one.
    #[error("reading sample {sample} set no class")]
    NoClassSet {
        /// The sample.
        sample: u64,
    },
    /// A sample with a class outside the data set's own spec.
    #[error("sample {sample} has class {class}, the data set promises classes below {classes}")]
    ClassOutOfRange {
        /// The sample.
        sample: u64,
        /// Its class.
        class: u32,
        /// The number of classes.
        classes: u32,
    },
    /// A sample with a token outside the data set's own spec.
    #[error("sample {sample} has token {token}, the data set promises tokens below {vocabulary}")]
    TokenOutOfRange {
        /// The sample.
        sample: u64,
        /// The token.
        token: u32,
        /// The vocabulary.
        vocabulary: u32,
    },
    /// Reading panicked.
    #[error("reading micro-batch {micro_batch} of step {step} panicked: {message}")]
    ReadPanicked {
        /// The step.
        step: Step,
        /// The micro-batch.
        micro_batch: MicroBatch,
        /// What the panic said.
        message: String,
    },
    /// A worker thread cannot be started.
    #[error("cannot start a loader thread: {source}")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// The loader was asked for more after it had given an error.
    #[error("the loader stopped at an earlier error")]
    LoaderStopped,
    /// What is wrong with recordings.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// What is wrong with a table of labels beside images.
    #[error(transparent)]
    Labels(#[from] LabelsError),
    /// What is wrong with shards of images.
    #[error(transparent)]
    Shards(#[from] ShardsError),
    /// An error of a data set outside this crate.
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl DataError {
    /// Wraps the error of a data set of your own.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// An error of the system about `file`; a missing file is told apart, with what the kind `needs`.
    pub(crate) fn io(file: &Path, needs: &'static str, source: io::Error) -> Self {
        let file = file.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { file, needs },
            _ => Self::Io { file, source },
        }
    }
}

/// `, only of a, b`, cut where it is too long for a line.
fn only(known: &[String]) -> String {
    /// As many are shown.
    const SHOWN: usize = 40;
    let rest = match known.len() {
        0 => return String::new(),
        count if count > SHOWN => format!(" and {} more", count - SHOWN),
        _ => String::new(),
    };
    format!(", only of {}{rest}", known[..known.len().min(SHOWN)].join(", "))
}

/// ` (city)`, or nothing.
fn named(name: &Option<String>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" ({name})"))
}
