//! What is to be predicted, cut into pieces: tables line by line, arrays sample by sample.

use crate::error::CliError;
use crate::tokens::Tokens;
use dtrain_data::{
    Counted, CsvOptions, DataError, INPUT_NEEDS, ImageFiles, InputArray, InputSpec, LONGEST_ROW, ParquetText,
    Preparation, RowEnds, RowParser, Source, TokenArray, WindowFiles, unpacked,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Text that a worker takes at once. *Units*: bytes.
const TEXT: usize = 256 << 10;
/// Samples of an array that a worker takes at once.
const SAMPLES: u64 = 1024;

/// Files of images that a worker takes at once.
const IMAGES: usize = 32;

/// Windows of recordings that a worker takes at once.
const WINDOWS: usize = 256;

/// What the outputs of a piece of sequences take. *Units*: bytes.
const OUTPUTS: usize = 64 << 20;

/// What a .npy file begins with.
const NUMPY: &[u8] = b"\x93NUMPY";

/// Samples that are predicted together.
#[derive(Debug)]
pub enum Piece {
    /// Whole lines of a table.
    Text {
        /// The lines.
        text: Vec<u8>,
        /// The number of the first one, from 1.
        first_line: u64,
    },
    /// The values of samples, prepared.
    Values(Vec<f32>),
    /// Sequences of tokens, none of them empty.
    Tokens(Vec<Vec<u32>>),
    /// Some files of images, which are decoded by whoever predicts them.
    Images {
        /// All files.
        images: Arc<ImageFiles>,
        /// Those of the piece.
        files: Range<usize>,
    },
    /// Some windows of recordings.
    Windows {
        /// All windows.
        recordings: Arc<WindowFiles>,
        /// Those of the piece.
        windows: Range<usize>,
    },
}

/// One file, or standard input, that gives its pieces one after the other.
pub struct Input {
    parser: Option<Box<RowParser>>,
    rest: Rest,
}

/// What is left to read.
enum Rest {
    Table(Lines),
    Array {
        array: InputArray,
        preparation: Box<Preparation>,
        /// The next sample.
        next: u64,
    },
    Images {
        images: Arc<ImageFiles>,
        /// The next file.
        next: usize,
    },
    Windows {
        recordings: Arc<WindowFiles>,
        /// The next window.
        next: usize,
    },
    Sequences {
        array: TokenArray,
        /// The next sequence.
        next: u64,
        /// Sequences of a piece.
        most: usize,
    },
    /// A text: what stands in each line that is not empty goes on.
    Prompts {
        text: Lines,
        ready: VecDeque<Vec<u32>>,
        tokens: Tokens,
        /// Tokens that the model sees.
        context: usize,
        /// Lines of a piece.
        most: usize,
    },
}

/// A text cut at the ends of lines, or of rows.
pub struct Lines {
    reader: Box<dyn BufRead + Send>,
    path: PathBuf,
    rest: Vec<u8>,
    next_line: u64,
    /// Where rows end, where they may have several lines.
    ends: Option<RowEnds>,
    read: Arc<AtomicU64>,
    size: Option<u64>,
    /// Whether it is that of a Parquet file.
    is_parquet: bool,
}

impl Input {
    /// Opens a file, or standard input for `-`. `tokens`: what they are, of a model of texts.
    ///
    /// *Errors*: it is not there; its columns or its samples are not those of training.
    pub fn open(
        path: &Path,
        preparation: &Preparation,
        trained_on: Option<&Source>,
        tokens: Option<&Tokens>,
    ) -> Result<Self, CliError> {
        if let Some(images) = ImageFiles::open(path, preparation)? {
            return Ok(Self::of_images(images));
        }
        if let Some(Source::Windows(options)) = trained_on
            && let Some(recordings) = WindowFiles::open(path, preparation, &options.table)?
        {
            let rest = Rest::Windows { recordings: Arc::new(recordings), next: 0 };
            return Ok(Self { parser: None, rest });
        }
        if path.is_dir() {
            let error = CliError::usage(format!("{} is a folder", path.display()));
            return Err(error.hint("name its files, as in FOLDER/*.csv"));
        }
        // What is no file can be read once: it is a table.
        let plain = path != Path::new("-") && std::fs::metadata(path).is_ok_and(|about| about.is_file());
        if let InputSpec::Tokens { length, vocabulary } = preparation.input {
            let most = (OUTPUTS / (length * vocabulary as usize * size_of::<f32>())).max(1);
            let array = plain.then(|| TokenArray::open(path, length, vocabulary)).transpose()?.flatten();
            let rest = match array {
                Some(array) => Rest::Sequences { array, next: 0, most },
                None => {
                    let text = Self::text(path)?;
                    let Some(tokens @ (Tokens::Bytes | Tokens::Known(..))) = tokens else {
                        let shown = text.path.display();
                        let error = CliError::usage(format!("{shown} is no .npy array of token ids"));
                        let hint = "the model was trained on ids, and the run has no tokenizer: save those of a text as an array \
                                    [n, time]";
                        return Err(error.hint(hint));
                    };
                    let (tokens, ready) = (tokens.clone(), VecDeque::new());
                    Rest::Prompts { text, ready, tokens, context: length, most }
                }
            };
            return Ok(Self { parser: None, rest });
        }
        if let Some(array) = plain.then(|| InputArray::open(path, preparation)).transpose()?.flatten() {
            let preparation = Box::new(preparation.clone());
            return Ok(Self { parser: None, rest: Rest::Array { array, preparation, next: 0 } });
        }
        let mut text = Self::text(path)?;
        let shown = text.path.clone();
        let options: Option<&CsvOptions> = match trained_on {
            Some(Source::Csv(options)) => Some(options),
            _ => None,
        };
        // The text of a Parquet file is written here, whatever the training table looked like.
        let options = options.filter(|_| !text.is_parquet);
        text.skip(options.map_or(0, |options| options.skip))?;
        let first = text.first_line()?;
        let ends = RowEnds::new(
            &first,
            options.and_then(|options| options.delimiter).or(text.is_parquet.then_some(',')),
        );
        let (first, lines) = text.first_row(ends)?;
        let parser = RowParser::new(preparation, (&shown, text.next_line), &first, ends)?;
        if parser.has_header() {
            text.skip(lines)?;
        }
        Ok(Self { parser: Some(Box::new(parser)), rest: Rest::Table(text) })
    }

    /// Files of images.
    #[must_use]
    pub fn of_images(images: ImageFiles) -> Self {
        Self { parser: None, rest: Rest::Images { images: Arc::new(images), next: 0 } }
    }

    /// Whether each sample is a file.
    #[must_use]
    pub fn is_of_files(&self) -> bool {
        matches!(self.rest, Rest::Images { .. })
    }

    /// The windows of recordings, if the samples are some.
    #[must_use]
    pub fn windows(&self) -> Option<&WindowFiles> {
        match &self.rest {
            Rest::Windows { recordings, .. } => Some(recordings),
            _ => None,
        }
    }

    /// A file or standard input as lines.
    fn text(path: &Path) -> Result<Lines, CliError> {
        let mut text = if path == Path::new("-") {
            Lines::new(Box::new(std::io::stdin()), PathBuf::from("standard input"), None)?
        } else {
            let shown = path.to_owned();
            let file = File::open(path).map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => {
                    DataError::Missing { file: shown.clone(), needs: INPUT_NEEDS }
                }
                _ => DataError::Io { file: shown.clone(), source },
            })?;
            let about = file.metadata().ok().filter(std::fs::Metadata::is_file);
            match about.map(|about| about.len()) {
                Some(size) => match ParquetText::of(file)
                    .map_err(|source| DataError::Io { file: shown.clone(), source })?
                {
                    Ok(text) => Lines { is_parquet: true, ..Lines::new(Box::new(text), shown, None)? },
                    Err(file) => Lines::new(Box::new(file), shown, Some(size))?,
                },
                // What is no file can be read once.
                None => Lines::new(Box::new(file), shown, None)?,
            }
        };
        if text.more()? && text.rest.starts_with(NUMPY) {
            let error = CliError::usage(format!("{} is a .npy array, not a table", text.path.display()));
            return Err(error.hint("write it to a file and name that: an array is read from a file only"));
        }
        Ok(text)
    }

    /// How many tokens the sequences of an array have; none if this is no array of token ids.
    #[must_use]
    pub fn time(&self) -> Option<usize> {
        match &self.rest {
            Rest::Sequences { array, .. } => Some(array.time()),
            _ => None,
        }
    }

    /// What reads the lines of a table.
    pub fn take_parser(&mut self) -> Option<Box<RowParser>> {
        self.parser.take()
    }

    /// How much there is, if that is known. *Units*: bytes of a table or a text, samples of an array.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        match &self.rest {
            Rest::Table(text) | Rest::Prompts { text, .. } => text.size,
            Rest::Array { array, .. } => Some(array.rows()),
            Rest::Images { images, .. } => Some(images.files().len() as u64),
            Rest::Windows { recordings, .. } => Some(recordings.len() as u64),
            Rest::Sequences { array, .. } => Some(array.rows()),
        }
    }

    /// What counts how far a table or a text is read. *Units*: bytes.
    #[must_use]
    pub fn counter(&self) -> Option<Arc<AtomicU64>> {
        match &self.rest {
            Rest::Table(text) | Rest::Prompts { text, .. } => Some(Arc::clone(&text.read)),
            Rest::Array { .. } | Rest::Images { .. } | Rest::Windows { .. } | Rest::Sequences { .. } => None,
        }
    }

    /// The next piece.
    ///
    /// *Errors*: the file cannot be read. *Blocks* on it.
    pub fn next_piece(&mut self) -> Result<Option<Piece>, CliError> {
        match &mut self.rest {
            Rest::Table(text) => text.next_piece(),
            Rest::Array { array, preparation, next } => {
                let end = (*next + SAMPLES).min(array.rows());
                let range = std::mem::replace(next, end)..end;
                Ok((!range.is_empty()).then(|| Piece::Values(array.read(range, preparation))))
            }
            Rest::Images { images, next } => {
                let end = (*next + IMAGES).min(images.files().len());
                let files = std::mem::replace(next, end)..end;
                let images = Arc::clone(images);
                Ok((!files.is_empty()).then_some(Piece::Images { images, files }))
            }
            Rest::Windows { recordings, next } => {
                let end = (*next + WINDOWS).min(recordings.len());
                let windows = std::mem::replace(next, end)..end;
                let recordings = Arc::clone(recordings);
                Ok((!windows.is_empty()).then_some(Piece::Windows { recordings, windows }))
            }
            Rest::Sequences { array, next, most } => {
                let end = (*next + *most as u64).min(array.rows());
                let rows = std::mem::replace(next, end)..end;
                let sequences: Vec<Vec<u32>> = rows.map(|row| array.sequence(row).to_vec()).collect();
                Ok((!sequences.is_empty()).then_some(Piece::Tokens(sequences)))
            }
            Rest::Prompts { text, ready, tokens: kind, context, most } => {
                while ready.is_empty() {
                    let Some(Piece::Text { text, .. }) = text.next_piece()? else { return Ok(None) };
                    let lines = text.split(|byte| *byte == b'\n');
                    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
                    for line in lines.filter(|line| !line.is_empty()) {
                        let mut tokens = kind.of_line(line)?.unwrap_or_default();
                        // The model sees the last tokens of a line that is longer.
                        tokens.drain(..tokens.len().saturating_sub(*context));
                        if !tokens.is_empty() {
                            ready.push_back(tokens);
                        }
                    }
                }
                let most = (*most).min(ready.len());
                Ok(Some(Piece::Tokens(ready.drain(..most).collect())))
            }
        }
    }
}

impl Lines {
    fn new(inner: Box<dyn Read + Send>, path: PathBuf, size: Option<u64>) -> Result<Self, CliError> {
        let (counted, read) = Counted::new(inner);
        let reader = unpacked(counted).map_err(|source| DataError::Io { file: path.clone(), source })?;
        Ok(Self { reader, path, rest: Vec::new(), next_line: 1, ends: None, read, size, is_parquet: false })
    }

    /// Reads more; false at the end.
    fn more(&mut self) -> Result<bool, CliError> {
        let have = self.rest.len();
        let read = self.reader.by_ref().take(TEXT as u64).read_to_end(&mut self.rest);
        read.map_err(|source| DataError::Io { file: self.path.clone(), source })?;
        Ok(self.rest.len() > have)
    }

    fn line_end(&mut self) -> Result<usize, CliError> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                return Ok(end + 1);
            }
            if !self.more()? {
                return Ok(self.rest.len());
            }
        }
    }

    fn skip(&mut self, lines: u64) -> Result<(), CliError> {
        for _ in 0..lines {
            let end = self.line_end()?;
            self.rest.drain(..end);
            self.next_line += 1;
        }
        Ok(())
    }

    /// The first line that is not empty, which stays to be read.
    fn first_line(&mut self) -> Result<String, CliError> {
        loop {
            let end = self.line_end()?;
            let line = &self.rest[..end];
            if end == 0 {
                return Err(DataError::Empty { file: self.path.clone() }.into());
            }
            if !line.trim_ascii().is_empty() {
                return Ok(String::from_utf8_lossy(line).into_owned());
            }
            self.skip(1)?;
        }
    }

    /// The first row and how many lines it has; it stays to be read, and pieces end at the ends of rows from now on.
    fn first_row(&mut self, ends: RowEnds) -> Result<(String, u64), CliError> {
        self.ends = Some(ends);
        let mut end = 0;
        loop {
            let line = self.rest[end..].iter().position(|byte| *byte == b'\n');
            if line.is_none() && self.more()? {
                continue;
            }
            end = line.map_or(self.rest.len(), |line| end + line + 1);
            let row = &self.rest[..end];
            if line.is_none() && ends.last(&[row, b"\n"].concat()) != Some(end + 1) {
                return Err(DataError::OpenQuote { file: self.path.clone(), line: self.next_line }.into());
            }
            if line.is_none() || ends.last(row) == Some(end) {
                let lines = row.iter().filter(|byte| **byte == b'\n').count().max(1) as u64;
                return Ok((String::from_utf8_lossy(row).into_owned(), lines));
            }
            self.check_row()?;
        }
    }

    /// *Errors*: what is there is longer than a row can be, and no row ends in it.
    fn check_row(&self) -> Result<(), CliError> {
        match self.rest.len() > LONGEST_ROW {
            true => Err(DataError::OpenQuote { file: self.path.clone(), line: self.next_line }.into()),
            false => Ok(()),
        }
    }

    /// Where the last line ends of what is there, or the last row.
    fn last_end(&self) -> Option<usize> {
        match self.ends {
            Some(ends) => ends.last(&self.rest),
            None => self.rest.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1),
        }
    }

    fn next_piece(&mut self) -> Result<Option<Piece>, CliError> {
        let end = loop {
            if self.rest.len() >= TEXT {
                if let Some(end) = self.last_end() {
                    break end;
                }
                // A line of a text has any length, a row has not.
                if self.ends.is_some_and(|_| self.rest.contains(&b'\n')) {
                    self.check_row()?;
                }
            }
            if !self.more()? {
                break self.rest.len();
            }
        };
        if end == 0 {
            return Ok(None);
        }
        let rest = self.rest.split_off(end);
        let text = std::mem::replace(&mut self.rest, rest);
        let first_line = self.next_line;
        self.next_line += text.iter().filter(|byte| **byte == b'\n').count() as u64;
        Ok(Some(Piece::Text { text, first_line }))
    }
}
