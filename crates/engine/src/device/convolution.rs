//! The shape of a convolution.
//!
//! It does not know who computes one.

/// A convolution over `N` dimensions: `x: [N, C, sides...]`, weights `[O, C, kernel...]`, `y: [N, O, sides...]`. Of images the
/// axes are height and width, of volumes depth, height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape<const N: usize> {
    /// Images in the batch.
    pub images: usize,
    /// Input channels.
    pub channels: usize,
    /// Input sides.
    pub size: [usize; N],
    /// Output channels.
    pub outputs: usize,
    /// Kernel sides.
    pub kernel: [usize; N],
    /// Step between windows.
    pub stride: [usize; N],
    /// Zeros around the image.
    pub padding: [usize; N],
}

/// A convolution over images.
pub type Conv2dShape = ConvShape<2>;
/// A convolution over volumes, or over images in a row. Fewer dimensions are those with 1 in front.
pub type Conv3dShape = ConvShape<3>;

impl<const N: usize> ConvShape<N> {
    /// Output sides.
    #[must_use]
    pub fn output_size(&self) -> [usize; N] {
        let along = |d| (self.size[d] + 2 * self.padding[d] - self.kernel[d]) / self.stride[d] + 1;
        std::array::from_fn(along)
    }
}

impl Conv3dShape {
    /// The same convolution over images; nothing if they are deeper than one element.
    #[must_use]
    pub fn flat(&self) -> Option<Conv2dShape> {
        let Self { images, channels, size, outputs, kernel, stride, padding } = *self;
        let last = |[_, height, width]: [usize; 3]| [height, width];
        let is_flat = [size[0], kernel[0], padding[0]] == [1, 1, 0];
        is_flat.then_some(Conv2dShape {
            images,
            channels,
            size: last(size),
            outputs,
            kernel: last(kernel),
            stride: last(stride),
            padding: last(padding),
        })
    }
}

impl From<Conv2dShape> for Conv3dShape {
    /// The same convolution of images that are one element deep.
    fn from(flat: Conv2dShape) -> Self {
        let Conv2dShape { images, channels, size, outputs, kernel, stride, padding } = flat;
        let deep = |first: usize, [height, width]: [usize; 2]| [first, height, width];
        Self {
            images,
            channels,
            size: deep(1, size),
            outputs,
            kernel: deep(1, kernel),
            stride: deep(1, stride),
            padding: deep(0, padding),
        }
    }
}
