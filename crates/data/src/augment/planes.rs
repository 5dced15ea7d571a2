//! How the values of a picture, or of a clip, lie one after the other.
//!
//! It does not know what they mean.

/// Channel after channel, in each frame after frame, in each row after row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planes {
    pub channels: usize,
    /// 1 of a picture.
    pub frames: usize,
    pub height: usize,
    pub width: usize,
}

impl Planes {
    /// That of a sample of this shape; none if it is no picture.
    pub fn of(shape: &[usize]) -> Option<Self> {
        match *shape {
            [channels, height, width] => Some(Self { channels, frames: 1, height, width }),
            [channels, frames, height, width] => Some(Self { channels, frames, height, width }),
            _ => None,
        }
    }

    /// The same with other sides.
    pub fn with_sides(self, [height, width]: [usize; 2]) -> Self {
        Self { height, width, ..self }
    }

    /// Values of one frame of one channel.
    pub fn plane(&self) -> usize {
        self.height * self.width
    }

    /// Values of one channel.
    pub fn channel(&self) -> usize {
        self.frames * self.plane()
    }
}
