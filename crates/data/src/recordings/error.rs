//! What can be wrong with recordings beside what can be wrong with tables.

use dtrain_types::counted;
use std::path::PathBuf;

/// Why recordings cannot be read or cut.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A folder without recordings.
    #[error("{} has no recordings", folder.display())]
    NoRecordings {
        /// The folder.
        folder: PathBuf,
    },
    /// A file of a kind that is not read.
    #[error("{} is a {kind} file, which is not read", file.display())]
    OtherKind {
        /// The file.
        file: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// No recording is as long as a window.
    #[error("{} has no window of {}: the longest stretch without a gap has {longest}", path.display(), counted(*length, "row"))]
    NoWindow {
        /// The file or the folder.
        path: PathBuf,
        /// The rows of the longest stretch.
        longest: usize,
        /// The rows of a window.
        length: usize,
    },
    /// A recording whose columns are not those of the first.
    #[error("{} line {line}: {problem}", file.display())]
    UnlikeFirst {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// What differs.
        problem: String,
    },
    /// A field that is no time.
    #[error("{} line {line}, column {column}: {text:?} is no time", file.display())]
    NoTime {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// The column's name, or its number from 1.
        column: String,
        /// The field.
        text: String,
    },
    /// A time before that of the row in front.
    #[error("{} line {line}: the time {text} is before {before}, that of the row in front", file.display())]
    TimeGoesBack {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// The time.
        text: String,
        /// That of the row in front.
        before: String,
    },
    /// A column that is asked for as a channel and has words.
    #[error("column {column:?} of {} is words, and a channel is numbers", file.display())]
    WordsInChannel {
        /// The first file.
        file: PathBuf,
        /// The column.
        column: String,
    },
    /// Windows that are held out one by one would share rows with those of training.
    #[error(
        "windows of {length} rows every {stride} overlap: held out one by one, they would share rows with training"
    )]
    Overlap {
        /// Rows of a window.
        length: usize,
        /// Rows from one to the next.
        stride: usize,
    },
    /// A recording of another model's channels or windows.
    #[error("{} has {got}, and the model was trained on {expected}", path.display())]
    OtherWindows {
        /// The file or the folder.
        path: PathBuf,
        /// What it has.
        got: String,
        /// What the model takes.
        expected: String,
    },
    /// Windows of a file of another length.
    #[error("{} has {got} numbers on a line, and {wanted} are wanted", file.display())]
    OtherLength {
        /// The file.
        file: PathBuf,
        /// Its numbers on a line.
        got: usize,
        /// As many are wanted.
        wanted: usize,
    },
    /// Activities that are to be predicted as numbers.
    #[error("the activities of UCI-HAR are classes, and loss.kind is mse")]
    Activities,
    /// A label that has no name.
    #[error("{} line {line}: label {label} is not in activity_labels.txt", file.display())]
    NoActivity {
        /// The file.
        file: PathBuf,
        /// Line in the file, from 1.
        line: u64,
        /// The label.
        label: u64,
    },
}

impl RecordingError {
    /// What to do about it, in one sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoRecordings { .. } => "a folder is read for .csv and .tsv, plain, .gz or .zst: add some, or name a file".into(),
            Self::OtherKind { .. } => "write it as CSV: pandas.read_parquet(FILE).to_csv(FILE, index=False)".into(),
            Self::NoWindow { .. } => "use a smaller data.length, or a larger data.gap".into(),
            Self::UnlikeFirst { .. } => "all recordings have the columns of the first, in any order; move other files away".into(),
            Self::NoTime { .. } => "a time is a number, 2024-05-01T10:00:00.5Z or 10:15:30; data.time names its column".into(),
            Self::TimeGoesBack { .. } => {
                "sort the rows; where a file has several recordings, data.group names the column that tells them apart".into()
            }
            Self::WordsInChannel { .. } => "leave it out of data.columns, or turn its words into numbers".into(),
            Self::Overlap { length, .. } => format!(
                "write data.group=file, folder or a column; or data.held_out=last; or data.stride={length}"
            ),
            Self::OtherWindows { .. } => "bring the samples to the form of training".into(),
            Self::OtherLength { got, .. } => format!("signals: write data.length={got}; or bring the file to the form of the others"),
            Self::Activities => "write loss.kind=cross_entropy".into(),
            Self::NoActivity { .. } => "correct the label, or add its line to activity_labels.txt".into(),
        }
    }
}
