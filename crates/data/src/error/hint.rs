//! What a user can do about each error.

use super::DataError;
use crate::csv::missing::{Nothing, nothing};
use std::io;

impl DataError {
    /// What to do about it, in one sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Missing { needs, .. } => format!("check the path; {needs}"),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "give the user who runs dtrain the right to read it".into()
            }
            Self::Io { .. } => "the file may be damaged or half downloaded; fetch it again".into(),
            Self::WrongMagic { .. } => "the file is of another kind; images and labels may be swapped".into(),
            Self::WrongLength { expected, got, .. } if got < expected => {
                "the file is cut off, perhaps half downloaded; fetch it again".into()
            }
            Self::WrongLength { .. } => "the file has bytes after its end; it may be of another kind".into(),
            Self::Header { .. } => "write the file again with numpy.save of a plain array".into(),
            Self::ElementType { expected, .. } => format!("convert the array to one of {expected}"),
            Self::CountMismatch { .. } => {
                "inputs and targets must come from the same part of the data".into()
            }
            Self::Shape { .. } => "training and validation samples must have one shape".into(),
            Self::OtherShape { .. } => "bring the samples to the shape of training".into(),
            Self::TargetShape { expected: 1, .. } => "give an array of shape [n], one target a sample".into(),
            Self::TargetShape { expected, .. } => {
                format!("the model predicts {expected} numbers: give an array of shape [n, {expected}]")
            }
            Self::NoClass { classes, .. } => format!(
                "the model knows the classes 0 to {}: correct the label, or leave its sample out",
                classes.saturating_sub(1)
            ),
            Self::OtherIds { instead, .. } => instead.clone(),
            Self::NoArray { needs, .. } => (*needs).into(),
            Self::RaggedRow { .. } => {
                "check data.delimiter, and pass over lines that do not belong to the table with data.skip=N".into()
            }
            Self::OpenQuote { .. } => {
                "close it, or double a quote that belongs to the text; a row has at most 4 MiB".into()
            }
            Self::NotANumber { text, .. } if nothing(text) != Nothing::Word => {
                "data.missing=fill puts the mean of the column there; or replace missing values in the file".into()
            }
            Self::NotANumber { name: Some(name), .. } => format!(
                "most of column {name:?} is numbers: correct the field, or write data.columns=[{name}:category] or [-{name}]"
            ),
            Self::NotANumber { line, .. } if *line <= 2 => {
                "write data.header=true if the first line names the columns, or data.skip=N for lines before the table"
                    .into()
            }
            Self::NotANumber { .. } => {
                "turn text into numbers, or leave the column out, before training".into()
            }
            Self::MissingWord { .. } => {
                "data.missing=fill takes it as no word; or write it, or leave the row out".into()
            }
            Self::NotFinite { value, .. } | Self::FieldNotFinite { value, .. } if value.is_nan() => {
                "in a table data.missing=fill puts the mean of the column there; or replace missing values in the file".into()
            }
            Self::NotFinite { .. } | Self::FieldNotFinite { .. } => "correct the value, or leave its row out".into(),
            Self::UnseenWord { .. } => {
                "the run was trained with data.unseen=refuse; train with data.unseen=ignore, or with rows that have this word"
                    .into()
            }
            Self::OtherColumns { .. } => {
                "a table to be predicted has the columns of the training table; that of the target may be left out".into()
            }
            Self::NoInputs { .. } => "name the inputs with data.columns=[...]".into(),
            Self::NoSuchColumn { .. } => "name a column of the header, or give its number from 0".into(),
            Self::LabelNotInteger { .. } => {
                "write loss.kind=mse to predict real numbers, or number the classes from 0".into()
            }
            Self::LabelOutOfRange { label, .. } if *label < 0 => "number the classes from 0".into(),
            Self::LabelOutOfRange { .. } => {
                "number the classes from 0 without gaps, or write loss.kind=mse to predict real numbers".into()
            }
            Self::NoClassFolders { .. } => "put what is of each class into a folder of its name".into(),
            Self::UnknownClassFolder { .. } => {
                "its name is that of no training folder: rename it, or move it away".into()
            }
            Self::NoImages { .. } => "it is read for .jpg, .jpeg, .png and .webp: add some, or remove the folder".into(),
            Self::NoClips { .. } => {
                "a clip is a video (.mp4, .mov, .mkv, .webm, .avi), a folder of frames (.jpg, .png, .webp) or a .npy array: add some, or remove the folder"
                    .into()
            }
            Self::Video { why, .. } => why.hint(),
            Self::ShortClip { .. } => {
                "take fewer with data.frames or data.frame_stride, or leave such clips out with data.broken=skip".into()
            }
            Self::NoClipArray { .. } => "save each clip as an array of its own, of uint8".into(),
            Self::Picture { .. } => {
                "the file may be damaged: mend or remove it, or write data.broken=skip to leave such files out".into()
            }
            Self::Empty { .. } => "at least one sample is needed".into(),
            Self::TooShort { .. } => "use a smaller data.context, a larger data.val_split, or more text".into(),
            Self::NotTokens { instead, .. } => (*instead).into(),
            Self::HalfToken { .. } => {
                "the file is cut off, or of another kind: bytes of a text are data.kind=text".into()
            }
            Self::NoTokenizer { .. } => {
                "set data.vocabulary, or take it away: `dtrain tokenize` writes one beside the ids that it makes".into()
            }
            Self::NoDocument { .. } => {
                "texts are UTF-8; of .jsonl files and Parquet the field that --field names (text) is read, or with --chat conversations".into()
            }
            Self::NothingLearnt { .. } => {
                "set data.context above the longest question: an example begins with what is asked".into()
            }
            Self::NoMask { .. } => {
                "write both again with `dtrain tokenize --chat`; ids without examples have no .mask beside them".into()
            }
            Self::IdOutOfRange { .. } => {
                "set data.vocabulary to that of the tokenizer; ids are little-endian u16, or u32 where it is above 65536, without a header before them"
                    .into()
            }
            Self::MissingGroup { .. } => "write it, or leave the row out".into(),
            Self::NoGroup { .. } => {
                "data.group=folder wants CLASS/GROUP/FILE, with data.labels GROUP/FILE; a pattern has GROUP once and * for the rest, such as GROUP_*".into()
            }
            Self::TwoRoles { .. } => "name one column for each".into(),
            Self::NoSuchGroup { known, .. } if known.is_empty() => {
                "data.group says what groups are; without groups data.held_out is scattered or last".into()
            }
            Self::NoSuchGroup { .. } => "data.held_out is scattered, last, or a list of groups".into(),
            Self::AllGroupsHeldOut { .. } => {
                "say with data.group what belongs together; with data.group=none data.held_out=last holds out the end".into()
            }
            Self::Split { .. } => "choose a data.val_split between 0 and 1 that leaves rows on both sides".into(),
            Self::Augment { .. } => {
                "data.augment needs images or clips [channels, height, width], larger than a shift or crop; resized-crop takes any size"
                    .into()
            }
            Self::Option { option, expected, .. } => format!("set data.{option} to {expected}"),
            Self::PlanMismatch { .. } => "make the plan from the data set's own length".into(),
            Self::NoClassSet { .. } => "call `set_class` in `Dataset::read`".into(),
            Self::ClassOutOfRange { .. } | Self::TokenOutOfRange { .. } => {
                "correct `Dataset::spec`, or what `Dataset::read` writes".into()
            }
            Self::ReadPanicked { .. } => "the data set's `read` must return an error instead".into(),
            Self::Thread { .. } => "write a smaller workers=N, or raise the limit of threads".into(),
            Self::LoaderStopped => "see the error before this one".into(),
            Self::Recording(error) => error.hint(),
            Self::Labels(error) => error.hint(),
            Self::Shards(error) => error.hint(),
            Self::Other(_) => "the data set that returned it knows more".into(),
        }
    }
}
