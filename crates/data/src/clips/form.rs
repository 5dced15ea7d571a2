//! What every clip becomes: a part of what every checkpoint knows.

use crate::images::PictureForm;
use serde::{Deserialize, Serialize};

/// What every clip becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClipForm {
    /// Frames that are taken.
    pub frames: u32,
    /// Frames from one that is taken to the next.
    pub stride: u32,
    /// What each becomes.
    pub picture: PictureForm,
}

impl ClipForm {
    /// `[channels, frames, height, width]`.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.picture.shape();
        shape.insert(1, self.frames as usize);
        shape
    }
}
