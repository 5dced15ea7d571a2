//! Readers of real data sets, and the loader that keeps a rank fed.
//!
//! A [`Dataset`] gives samples by number. The batch plan of `dtrain-types` says which samples a micro-batch holds;
//! this crate reads them into recycled [`Batch`]es, inline or by worker threads, with the same bits either way.
//!
//! It does not know what a model, a rank, a device or a configuration file is.

mod arrays;
mod augment;
mod batch;
mod bytes;
mod classes;
mod clips;
mod csv;
mod dataset;
mod digits;
mod error;
mod evaluation;
mod examples;
mod feed;
mod file_groups;
mod groups;
mod ids;
mod idx;
mod image_files;
mod images;
mod loader;
mod mmap;
mod normalise;
mod npy;
mod opened;
mod parquet_text;
mod picture_tables;
mod preparation;
mod recordings;
mod records;
mod rows;
mod scattered;
mod shards;
mod source;
mod split;
mod target_array;
mod text;
mod texts;
mod token_array;
mod tokens;
mod windows;

pub use crate::bytes::{Counted, plain_name, unpacked};
pub use arrays::{INPUT_NEEDS, InputArray};
pub use augment::{Augment, AugmentParseError, Crop, Cut, Jitter, Mix, RandAugment};
pub use batch::{Batch, Elements};
pub use classes::{ClassDistribution, class_distribution};
pub use clips::{ClipForm, ClipsOptions, Ffmpeg, VideoError};
pub use csv::{
    Column, ColumnRule, CsvOptions, CsvTarget, LONGEST_ROW, MOST_WORDS, Missing, RowEnds, RowParser,
    Rows as CsvRows, Wish, Written,
};
pub use dataset::{Dataset, IGNORED, InputSpec, SampleSlot, SampleSpec, TargetSpec};
pub use digits::{DIGITS_ATTRIBUTION, DigitsOptions};
pub use error::DataError;
pub use evaluation::{EvaluationPlan, target_variance};
pub use examples::{BEGINS, ExampleCounts, LEARNT, mask_of};
pub use feed::{Feed, augment_site};
pub use file_groups::FileGroup;
pub use groups::HeldOutGroups;
pub use ids::IdWidth;
pub use idx::IdxOptions;
pub use image_files::ImageFiles;
pub use images::{Broken, Colours, ImagesOptions, LabelTable, LabelsError, PictureForm};
pub use loader::{Loader, LoaderPlan, LoanedBatch, QUEUE_PER_WORKER};
pub use mmap::Mapping;
pub use normalise::Normalise;
pub use npy::sample_shape as npy_sample_shape;
pub use npy::{NpyOptions, NpyTarget};
pub use opened::Opened;
pub use parquet_text::ParquetText;
pub use picture_tables::PictureTablesOptions;
pub use preparation::{ColumnUse, LeftOut, Preparation, Role, TargetScale, Unseen};
pub use recordings::{
    HarInputs, RecordingError, RecordingGroup, WindowFiles, WindowForm, WindowSpot, WindowsOptions,
};
pub use records::{Record, Records};
pub use scattered::scattered_samples;
pub use shards::{ShardsError, ShardsOptions};
pub use source::{Source, open};
pub use split::{HeldOut, ValSplit};
pub use target_array::TargetArray;
pub use text::TextOptions;
pub use texts::{TextPart, Texts};
pub use token_array::TokenArray;
pub use tokens::{MOST_TOKENS, TOKENIZER, TokensOptions};
