//! Files of images or clips that are to be predicted, or archives of images.

use crate::clips;
use crate::images::{self, Decode, Decoder, Files};
use crate::picture_tables::PictureTables;
use crate::shards::{LabelNeed, ManyPictures, Shards};
use crate::{DataError, Preparation, TargetSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Images or clips that are to be predicted.
#[derive(Clone, Debug)]
pub struct ImageFiles {
    /// What each is called.
    files: Vec<PathBuf>,
    decoder: Arc<dyn Decoder>,
}

impl ImageFiles {
    /// Those of a folder and of the folders in it, in the order of their paths, or of tar archives, or one; nothing if the model takes
    /// none, or if the file is none.
    ///
    /// *Errors*: a folder without images or clips, or that cannot be read.
    pub fn open(path: &Path, preparation: &Preparation) -> Result<Option<Self>, DataError> {
        let Some(form) = form(preparation) else { return Ok(None) };
        if let Some((many, _)) = Self::of_many(path, preparation, LabelNeed::Nothing)? {
            return Ok(Some(many));
        }
        let files = match preparation.clip {
            Some(_) => clips::all(path)?,
            None => images::all(path)?,
        };
        Ok(files.map(|files| Self::of(files, form)))
    }

    /// Those that lie together in tar archives or Parquet files, with their classes if these are needed.
    fn of_many(
        path: &Path,
        preparation: &Preparation,
        need: LabelNeed,
    ) -> Result<Option<(Self, Vec<u32>)>, DataError> {
        let (None, Some(form)) = (preparation.clip, preparation.picture) else { return Ok(None) };
        let known = match preparation.target {
            TargetSpec::Class { classes } => Some(classes),
            _ => None,
        };
        let label = preparation.label.as_deref();
        if Shards::are(path) {
            Self::of_pictures(Shards::open(path, form, need)?, known, need).map(Some)
        } else if PictureTables::are(path) {
            Self::of_pictures(PictureTables::of_path(path, form, label, need)?, known, need).map(Some)
        } else {
            Ok(None)
        }
    }

    fn of_pictures(
        pictures: impl ManyPictures,
        known: Option<u32>,
        need: LabelNeed,
    ) -> Result<(Self, Vec<u32>), DataError> {
        let classes = if need == LabelNeed::Class { pictures.classes(known)? } else { Vec::new() };
        Ok((Self { files: pictures.names(), decoder: Arc::new(pictures) }, classes))
    }

    fn of(files: Vec<PathBuf>, form: Arc<dyn Decode>) -> Self {
        Self { decoder: Arc::new(Files { files: files.clone(), form }), files }
    }

    /// Whether the file is one of many images.
    #[must_use]
    pub fn is_archive(path: &Path) -> bool {
        path.is_file() && (Shards::are(path) || PictureTables::are(path))
    }

    /// Those of a folder with one for each class, or of tar archives, each with its class.
    ///
    /// *Errors*: what is no class of the model; see [`ImageFiles::open`]. *Panics* if the model takes neither images nor clips.
    pub fn labelled(path: &Path, preparation: &Preparation) -> Result<(Self, Vec<u32>), DataError> {
        assert!(matches!(preparation.target, TargetSpec::Class { .. }), "a folder says which class");
        let form = form(preparation).expect("the model takes images or clips");
        if let Some(many) = Self::of_many(path, preparation, LabelNeed::Class)? {
            return Ok(many);
        }
        let names = &preparation.class_names;
        let (files, classes) = match preparation.clip {
            Some(_) => clips::labelled(path, names)?,
            None => images::labelled(path, names)?,
        };
        Ok((Self::of(files, form), classes))
    }

    /// The files; a clip may be a folder.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// What a model takes: the values of these files, normalised as those of training were.
    ///
    /// *Errors*: a file that cannot be decoded. *Panics* if there are no such files.
    pub fn read(
        &self,
        files: std::ops::Range<usize>,
        preparation: &Preparation,
    ) -> Result<Vec<f32>, DataError> {
        let mut values = Vec::new();
        for file in files {
            let first = values.len();
            let pixels = self.decoder.decode(file)?.iter().map(|byte| f32::from(*byte)).collect();
            values.extend(preparation.middle(pixels));
            preparation.normalise(&mut values[first..]);
        }
        Ok(values)
    }
}

fn form(preparation: &Preparation) -> Option<Arc<dyn Decode>> {
    match (preparation.picture, preparation.clip) {
        (_, Some(form)) => Some(Arc::new(form)),
        (Some(form), None) => Some(Arc::new(form)),
        (None, None) => None,
    }
}
