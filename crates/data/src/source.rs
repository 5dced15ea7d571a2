//! The kinds of data that can be named in a configuration, and the one way to open them.

use crate::{
    ClipsOptions, CsvOptions, DataError, DigitsOptions, IdxOptions, ImagesOptions, NpyOptions, Opened,
    PictureTablesOptions, ShardsOptions, TextOptions, TokensOptions, WindowsOptions, clips, csv, digits, idx,
    images, npy, picture_tables, recordings, shards, text, tokens,
};

/// A data set by kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Handwritten digits, 8x8, built into the program.
    Digits(DigitsOptions),
    /// Images in IDX files: MNIST and its family.
    Idx(IdxOptions),
    /// Images in folders, a folder a class.
    Images(ImagesOptions),
    /// Images in tar archives, as WebDataset has them.
    Tar(ShardsOptions),
    /// Images in Parquet files, as the Hugging Face Hub has them.
    ParquetImages(PictureTablesOptions),
    /// Clips in folders, a folder a class.
    Clips(ClipsOptions),
    /// A table of numbers.
    Csv(CsvOptions),
    /// A pair of NumPy arrays.
    Npy(NpyOptions),
    /// Recordings of sensors, cut into windows.
    Windows(WindowsOptions),
    /// A text, byte by byte.
    Text(TextOptions),
    /// Token ids that a tokenizer wrote.
    Tokens(TokensOptions),
}

/// Opens a data set.
///
/// *Errors*: see [`DataError`]; whatever is wrong with the files is found here, not in the middle of a run,
/// except token ids beyond the vocabulary, which are found where they are read.
/// *Order*: splits and statistics depend on the files and options alone.
pub fn open(source: &Source) -> Result<Opened, DataError> {
    let opened = match source {
        Source::Digits(options) => digits::open(options),
        Source::Idx(options) => idx::open(options),
        Source::Images(options) => images::open(options),
        Source::Tar(options) => shards::open(options),
        Source::ParquetImages(options) => picture_tables::open(options),
        Source::Clips(options) => clips::open(options),
        Source::Csv(options) => csv::open(options),
        Source::Npy(options) => npy::open(options),
        Source::Windows(options) => recordings::open(options),
        Source::Text(options) => text::open(options),
        Source::Tokens(options) => tokens::open(options),
    }?;
    tracing::debug!(
        train = opened.train.len(),
        val = opened.val.as_ref().map(|val| val.len()),
        "data set opened"
    );
    Ok(opened)
}
