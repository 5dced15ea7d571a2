//! From a file to the pixels of one size: decoded, turned as its EXIF orientation says, scaled so that its shorter side fits, and cut
//! in the middle.

use super::pictures::Decode;
use crate::DataError;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, ImageBufferError, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Cursor, Seek};
use std::path::Path;

/// The longest side and the most memory that a file may ask for: what asks for more is no photograph.
const LONGEST: u32 = 1 << 15;
const MOST: u64 = 1 << 30;

/// What every image becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PictureForm {
    /// Rows of pixels.
    pub height: u32,
    /// Pixels of a row.
    pub width: u32,
    /// Its channels.
    pub colours: Colours,
}

/// The channels of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Colours {
    /// Red, green and blue.
    #[default]
    Rgb,
    /// One: brightness.
    Gray,
}

impl PictureForm {
    /// `[channels, height, width]`.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        let channels = match self.colours {
            Colours::Rgb => 3,
            Colours::Gray => 1,
        };
        vec![channels, self.height as usize, self.width as usize]
    }

    /// The pixels of an image, channel after channel.
    pub(crate) fn pixels(&self, picture: DynamicImage) -> Result<Box<[u8]>, String> {
        let size = (picture.height(), picture.width());
        let pixels = match self.colours {
            Colours::Gray => self.scaled::<U8>(size, picture.into_luma8().into_raw())?,
            Colours::Rgb => self.scaled::<U8x3>(size, picture.into_rgb8().into_raw())?,
        };
        Ok(match self.colours {
            Colours::Gray => pixels.into_boxed_slice(),
            Colours::Rgb => {
                let plane = pixels.len() / 3;
                let mut planes = vec![0; pixels.len()].into_boxed_slice();
                for (at, pixel) in pixels.as_chunks::<3>().0.iter().enumerate() {
                    for (channel, value) in pixel.iter().enumerate() {
                        planes[channel * plane + at] = *value;
                    }
                }
                planes
            }
        })
    }
}

impl PictureForm {
    /// The middle of an image, scaled. Whole numbers throughout, so that no bit depends on the vector instructions.
    ///
    /// Of one kind of pixels: a function for all kinds that there are would be half of what this crate is compiled to.
    fn scaled<P: PixelTrait>(&self, (height, width): (u32, u32), pixels: Vec<u8>) -> Result<Vec<u8>, String> {
        if (height, width) == (self.height, self.width) {
            return Ok(pixels);
        }
        let mut scaled = vec![0; P::size() * self.width as usize * self.height as usize];
        let words = |error: ImageBufferError| error.to_string();
        let from = TypedImageRef::<P>::from_buffer(width, height, &pixels).map_err(words)?;
        let mut to = TypedImage::<P>::from_buffer(self.width, self.height, &mut scaled).map_err(words)?;
        let how = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .fit_into_destination(None);
        Resizer::new().resize_typed(&from, &mut to, &how).map_err(|error| error.to_string())?;
        Ok(scaled)
    }
}

impl PictureForm {
    /// The pixels of the bytes of a file, channel after channel.
    ///
    /// *Errors*: they are no image, or one that is too large.
    pub(crate) fn of_bytes(&self, bytes: &[u8]) -> Result<Box<[u8]>, String> {
        let picture = upright(ImageReader::new(Cursor::new(bytes)));
        self.pixels(picture.map_err(|error| error.to_string())?)
    }
}

impl Decode for PictureForm {
    /// The pixels of a file, channel after channel.
    ///
    /// *Errors*: it cannot be read, is no image, or is too large.
    fn decode(&self, file: &Path) -> Result<Box<[u8]>, DataError> {
        let picture = ImageReader::open(file).map_err(ImageError::from).and_then(upright);
        let picture = picture.map_err(|error| match error {
            ImageError::IoError(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
                DataError::io(file, super::folder::NEEDS, error)
            }
            error => DataError::Picture { file: file.to_owned(), reason: error.to_string() },
        })?;
        self.pixels(picture).map_err(|reason| DataError::Picture { file: file.to_owned(), reason })
    }
}

fn upright<R: BufRead + Seek>(reader: ImageReader<R>) -> Result<DynamicImage, ImageError> {
    // What it is, its first bytes say: names lie.
    let mut reader = reader.with_guessed_format()?;
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height, limits.max_alloc) =
        (Some(LONGEST), Some(LONGEST), Some(MOST));
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = decoder.orientation()?;
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}
