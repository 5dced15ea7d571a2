//! Which recordings, and how they are read and cut.

use super::form::WindowForm;
use crate::csv::CsvOptions;

/// What this kind of data is made of.
pub(crate) const NEEDS: &str = "kind windows needs `path`: a table (.csv, .tsv; plain, .gz or .zst), a folder of them, or that of UCI-HAR";

/// What says of which group a window is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordingGroup {
    /// Its file.
    #[default]
    File,
    /// The folder of its file.
    Folder,
    /// The column that the options of the table name.
    Column,
    /// Nothing: windows are held out one by one.
    None,
}

/// What is read of a folder of UCI-HAR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HarInputs {
    /// The signals of the sensors.
    #[default]
    Signals,
    /// The numbers that were computed of them, 561 a window.
    Features,
}

/// Which recordings, and how they are read and cut.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowsOptions {
    /// The files: `path` is one or a folder, and all are read so.
    pub table: CsvOptions,
    /// What says of which group a window is.
    pub group: RecordingGroup,
    /// How they are cut.
    pub form: WindowForm,
    /// What is read of a folder of UCI-HAR.
    pub har: HarInputs,
}
