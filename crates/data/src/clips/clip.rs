//! From a clip to the pixels of so many frames: those in its middle, each as an image becomes one.
//!
//! It does not know how the frames of a video are had; see `ffmpeg.rs`.

use super::ffmpeg::Ffmpeg;
use super::folder::{NEEDS, frames, is_video};
use super::form::ClipForm;
use crate::images::Decode;
use crate::{DataError, npy};
use image::{DynamicImage, GrayImage, RgbImage};
use std::path::Path;

impl ClipForm {
    /// Which frames of a clip with so many are taken.
    ///
    /// *Errors*: it has too few.
    fn taken(&self, clip: &Path, has: usize) -> Result<impl Iterator<Item = usize> + use<>, DataError> {
        let (frames, stride) = (self.frames as usize, self.stride as usize);
        let needed = (frames - 1) * stride + 1;
        if has < needed {
            let has = has as u64;
            return Err(DataError::ShortClip { clip: clip.to_owned(), has, needed: needed as u64 });
        }
        let first = (has - needed) / 2;
        Ok((0..frames).map(move |frame| first + frame * stride))
    }

    fn of_folder(&self, clip: &Path) -> Result<Vec<Box<[u8]>>, DataError> {
        let frames = frames(clip)?;
        self.taken(clip, frames.len())?.map(|frame| self.picture.decode(&frames[frame])).collect()
    }

    fn of_video(&self, clip: &Path) -> Result<Vec<Box<[u8]>>, DataError> {
        clip.metadata().map_err(|error| DataError::io(clip, NEEDS, error))?;
        let failed = |why| DataError::Video { file: clip.to_owned(), why };
        let ffmpeg = Ffmpeg::find().map_err(failed)?;
        let counted = ffmpeg.count(clip).map_err(failed)?;
        let taken: Vec<usize> = self.taken(clip, counted)?.collect();
        ffmpeg.frames(clip, (&taken, counted), |file| {
            let pixels = self.picture.of_bytes(file);
            pixels.map_err(|reason| DataError::Picture { file: clip.to_owned(), reason })
        })
    }

    fn of_array(&self, clip: &Path) -> Result<Vec<Box<[u8]>>, DataError> {
        let (shape, bytes, offset) = npy::bytes(clip)?;
        let (frames, height, width, channels) = match shape[..] {
            [frames, height, width] => (frames, height, width, 1),
            [frames, height, width, channels @ (1 | 3)] => (frames, height, width, channels),
            _ => return Err(DataError::NoClipArray { file: clip.to_owned(), got: shape }),
        };
        let frame = |at: usize| {
            let size = height * width * channels;
            let pixels = bytes[offset + at * size..][..size].to_vec();
            let (width, height) = (u32::try_from(width).ok()?, u32::try_from(height).ok()?);
            match channels {
                1 => GrayImage::from_raw(width, height, pixels).map(DynamicImage::ImageLuma8),
                _ => RgbImage::from_raw(width, height, pixels).map(DynamicImage::ImageRgb8),
            }
        };
        let picture = |at| {
            let frame = frame(at).ok_or_else(|| "the frames are too large".to_owned());
            let pixels = frame.and_then(|frame| self.picture.pixels(frame));
            pixels.map_err(|reason| DataError::Picture { file: clip.to_owned(), reason })
        };
        self.taken(clip, frames)?.map(picture).collect()
    }
}

impl Decode for ClipForm {
    /// The pixels of a clip, channel after channel, in each frame after frame.
    fn decode(&self, clip: &Path) -> Result<Box<[u8]>, DataError> {
        let frames = match clip.is_dir() {
            true => self.of_folder(clip)?,
            false if is_video(clip) => self.of_video(clip)?,
            false => self.of_array(clip)?,
        };
        let plane = (self.picture.height * self.picture.width) as usize;
        let channels = frames[0].len() / plane;
        let mut pixels = Vec::with_capacity(channels * plane * frames.len());
        for channel in 0..channels {
            frames
                .iter()
                .for_each(|frame| pixels.extend_from_slice(&frame[channel * plane..(channel + 1) * plane]));
        }
        Ok(pixels.into_boxed_slice())
    }
}
