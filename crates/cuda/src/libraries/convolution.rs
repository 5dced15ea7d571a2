//! Convolutions of halves, or of f32 as TF32, in the words of a library: what a choice is made for.
//!
//! A batch is told in parts that are all alike, for which the library's memory is bounded. Tensors are told as they lie, and the gradient of
//! weights is asked for in f32 then, of copies in f32 of the halves that it is made of; or of halves all are copied so that channels lie
//! last. This file says how large copies are.
//!
//! This file does not know a library's functions.

use super::{LibraryError, Numbers};
use crate::values::Storage;
use dtrain_engine::device::{Activation, Conv3dShape};
use serde::{Deserialize, Serialize};

/// The only library that is asked.
const NAME: &str = "cuDNN";

/// A size, or a number of elements, is an `int` there.
const INT: u64 = i32::MAX as u64;
/// Bytes of input and output that the library is told of at once.
const PART: u64 = 256 << 20;
/// Parts of a batch, at most.
const PARTS: u32 = 64;
/// The library's workspace may be that, and twice the tensors: it turns them over so that channels lie side by side.
const WORKSPACE: u64 = 64 << 20;
/// What a part begins on a multiple of, as the library's fastest kernels want it. *Units*: bytes.
const ALIGNED: u64 = 16;
/// The same of memory that is made for it.
const PLACE: u64 = 256;

/// Which operation of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// `y` of `x` and the weights, and what happens to it.
    Forward(Behind),
    /// `dx` of the weights and `dy`.
    Inputs,
    /// `dw` of `x` and `dy`.
    Weights,
}

impl Pass {
    /// For people who read what a GPU did.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward(_) => "cuDNN, forward",
            Self::Inputs => "cuDNN, gradient of the input",
            Self::Weights => "cuDNN, gradient of the weights",
        }
    }
}

/// What happens to a sum of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behind {
    /// Nothing.
    Nothing,
    /// `+ bias`.
    Bias,
    /// `max(+ bias, 0)`.
    BiasRelu,
}

impl Behind {
    /// Whether a bias is added.
    #[must_use]
    pub fn has_bias(self) -> bool {
        self != Self::Nothing
    }

    /// What is applied in the end.
    #[must_use]
    pub fn activation(self) -> Activation {
        if self == Self::BiasRelu { Activation::Relu } else { Activation::None }
    }
}

/// How the library is told of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they lie; what a gradient of weights is made of, widened to f32.
    AsTheyLie,
    /// By copies in which channels lie last. Of halves.
    ChannelsLast,
}

/// The sizes of a convolution, as [`Conv3dShape`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sizes {
    /// Images in the batch.
    pub images: u32,
    /// Input channels.
    pub channels: u32,
    /// Output channels.
    pub outputs: u32,
    /// Input sides.
    pub size: [u32; 3],
    /// Kernel sides.
    pub kernel: [u32; 3],
    /// Step between windows.
    pub stride: [u32; 3],
    /// Zeros around the image.
    pub padding: [u32; 3],
}

/// What a choice is made for. Two ranks with the same key may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConvolutionKey {
    /// Which of the three.
    pub pass: Pass,
    /// What is read, and what the result is.
    pub numbers: Numbers,
    /// The convolution.
    pub sizes: Sizes,
}

impl ConvolutionKey {
    /// Of a convolution that reads such numbers.
    ///
    /// *Errors*: [`LibraryError::Shape`] where the library cannot be told of it.
    pub fn of(pass: Pass, reads: Numbers, shape: &Conv3dShape) -> Result<Self, LibraryError> {
        let wrong = |why| LibraryError::Shape { library: NAME, shape: format!("{shape:?}"), why };
        let Conv3dShape { images, channels, size, outputs, kernel, stride, padding } = *shape;
        let fits = |d: usize| stride[d] > 0 && size[d] + 2 * padding[d] >= kernel[d];
        let empty = [images, channels, outputs].contains(&0) || size.contains(&0) || kernel.contains(&0);
        if empty || !(0..3).all(fits) {
            return Err(wrong("there is nothing to compute"));
        }
        // The library counts in `int`: sizes, and the elements of a tensor too.
        let small = |n: usize| u32::try_from(n).ok().filter(|n| *n <= INT as u32);
        let long = || wrong("it has more elements than 32 bits can count");
        let one = |n: usize| small(n).ok_or_else(long);
        let three = |n: [usize; 3]| Ok([one(n[0])?, one(n[1])?, one(n[2])?]);
        let (images, channels, outputs) = (one(images)?, one(channels)?, one(outputs)?);
        let (size, kernel, stride, padding) = (three(size)?, three(kernel)?, three(stride)?, three(padding)?);
        let numbers = if pass == Pass::Weights { reads.summed() } else { reads };
        let key =
            Self { pass, numbers, sizes: Sizes { images, channels, outputs, size, kernel, stride, padding } };
        let [image, weights, out] = key.elements();
        let whole = [image, out].map(|n| n.checked_mul(u64::from(key.images_of_a_part())));
        if [Some(weights)].into_iter().chain(whole).any(|n| n.is_none_or(|n| n > INT)) {
            return Err(long());
        }
        let parts = key.parts();
        let read = reads.storage().bytes() as u64;
        let begins = |n: u64| (read * n * u64::from(key.images_of_a_part())).is_multiple_of(ALIGNED);
        if parts > PARTS || (parts > 1 && !(begins(image) && begins(out))) {
            return Err(wrong("its images cannot be told in even parts"));
        }
        Ok(key)
    }

    /// The convolution in the engine's words.
    #[must_use]
    pub fn shape(&self) -> Conv3dShape {
        let Sizes { images, channels, outputs, size, kernel, stride, padding } = self.sizes;
        let three = |n: [u32; 3]| n.map(|n| n as usize);
        Conv3dShape {
            images: images as usize,
            channels: channels as usize,
            size: three(size),
            outputs: outputs as usize,
            kernel: three(kernel),
            stride: three(stride),
            padding: three(padding),
        }
    }

    /// Elements of one image, of the weights, of one output.
    fn elements(&self) -> [u64; 3] {
        let volume = |n: [usize; 3]| n.iter().fold(1u64, |all, n| all.saturating_mul(*n as u64));
        let (shape, channels, outputs) =
            (self.shape(), u64::from(self.sizes.channels), u64::from(self.sizes.outputs));
        let terms = volume(shape.kernel).saturating_mul(channels);
        let image = volume(shape.size).saturating_mul(channels);
        [image, terms.saturating_mul(outputs), volume(shape.output_size()).saturating_mul(outputs)]
    }

    /// Multiplications and additions.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let [_, weights, out] = self.elements();
        let terms = weights / u64::from(self.sizes.outputs);
        2u64.saturating_mul(terms).saturating_mul(out).saturating_mul(u64::from(self.sizes.images))
    }

    /// Bytes of a number as the library has it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if self.pass == Pass::Weights { 4 } else { self.reads().bytes() as u64 }
    }

    /// How what it reads lies.
    #[must_use]
    pub fn reads(&self) -> Storage {
        self.numbers.storage()
    }

    /// Images that the library is told of at once: as many as have room in `PART`, all parts alike.
    #[must_use]
    pub fn images_of_a_part(&self) -> u32 {
        let [image, _, out] = self.elements();
        let room = PART / image.saturating_add(out).saturating_mul(self.bytes()).max(1);
        let most = room.clamp(1, u64::from(self.sizes.images)) as u32;
        (1..=most).rev().find(|n| self.sizes.images.is_multiple_of(*n)).unwrap_or(1)
    }

    /// How many parts there are.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.sizes.images / self.images_of_a_part()
    }

    /// Elements of the input and of the output in a part.
    #[must_use]
    pub fn elements_of_a_part(&self) -> [u64; 2] {
        let ([image, _, out], images) = (self.elements(), u64::from(self.images_of_a_part()));
        [image, out].map(|n| n.saturating_mul(images))
    }

    /// Whether the library is told of it so.
    #[must_use]
    pub fn has(&self, form: Form) -> bool {
        form == Form::AsTheyLie || self.reads() != Storage::F32
    }

    /// Bytes that copies need: of a part of the input, of the weights, of a part of the output, in this order.
    #[must_use]
    pub fn copies(&self, form: Form) -> [u64; 3] {
        let ([x, y], [_, w, _]) = (self.elements_of_a_part(), self.elements());
        let read = self.reads().bytes() as u64;
        let bytes = match form {
            Form::AsTheyLie if self.pass == Pass::Weights && self.reads() != Storage::F32 => {
                [4 * x, 0, 4 * y]
            }
            Form::AsTheyLie => [0; 3],
            Form::ChannelsLast => [read * x, self.bytes() * w, read * y],
        };
        bytes.map(|bytes| bytes.next_multiple_of(PLACE))
    }

    /// The largest workspace that the library may have.
    #[must_use]
    pub fn most_workspace(&self) -> u64 {
        let ([x, y], [_, w, _]) = (self.elements_of_a_part(), self.elements());
        WORKSPACE + 2 * self.bytes() * (x + w + y)
    }

    /// Bytes of memory beside the operands that any algorithm for it has at most.
    #[must_use]
    pub fn most_room(&self) -> u64 {
        let forms = [Form::AsTheyLie, Form::ChannelsLast].into_iter().filter(|form| self.has(*form));
        let copies = forms.map(|form| self.copies(form).iter().sum::<u64>()).max();
        copies.unwrap_or_default() + self.most_workspace()
    }

    /// For people.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{self:?}")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn shape() -> Conv3dShape {
        Conv3dShape {
            images: 8,
            channels: 3,
            size: [1, 7, 9],
            outputs: 5,
            kernel: [1, 3, 2],
            stride: [1, 2, 1],
            padding: [0, 1, 0],
        }
    }

    pub fn key(pass: Pass) -> ConvolutionKey {
        ConvolutionKey::of(pass, Numbers::Bf16, &shape()).expect("it fits")
    }

    #[test]
    fn a_convolution_is_the_same_in_the_library_s_words() {
        let key = key(Pass::Forward(Behind::Bias));
        assert_eq!(key.shape(), shape());
        assert_eq!(key.elements(), [3 * 7 * 9, 5 * 3 * 6, 5 * 4 * 8]);
        assert_eq!(key.operations(), 2 * 18 * 5 * 4 * 8 * 8);
        assert_eq!((key.parts(), key.copies(Form::AsTheyLie)), (1, [0; 3]));
        // Halves, each copy begins on a multiple of 256 bytes.
        assert_eq!(
            key.copies(Form::ChannelsLast),
            [3 * 7 * 9 * 8, 5 * 18, 5 * 4 * 8 * 8].map(|n: u64| (2 * n).next_multiple_of(256))
        );
    }

    #[test]
    fn a_convolution_that_cannot_be_told_is_a_typed_error() {
        for (wrong, words) in [
            (Conv3dShape { images: 0, ..shape() }, "nothing to compute"),
            (Conv3dShape { kernel: [1, 10, 2], ..shape() }, "nothing to compute"),
            (Conv3dShape { images: 1 << 32, ..shape() }, "32 bits"),
            (Conv3dShape { size: [1, 1 << 16, 1 << 16], ..shape() }, "32 bits"),
            (Conv3dShape { images: 10_000_019, ..shape() }, "even parts"),
        ] {
            let error = ConvolutionKey::of(Pass::Inputs, Numbers::F16, &wrong).expect_err(words);
            assert!(
                matches!(error, LibraryError::Shape { .. }) && error.to_string().contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn a_large_batch_is_told_in_even_parts_of_bounded_memory() {
        let shape = Conv3dShape {
            images: 3 << 12,
            channels: 32,
            size: [1, 26, 26],
            outputs: 64,
            kernel: [1, 3, 3],
            stride: [1; 3],
            padding: [0; 3],
        };
        for (pass, reads) in
            [(Pass::Inputs, Numbers::Bf16), (Pass::Weights, Numbers::F16), (Pass::Weights, Numbers::Tf32)]
        {
            let key = ConvolutionKey::of(pass, reads, &shape).expect("it fits");
            let [x, y] = key.elements_of_a_part();
            assert_eq!(key.parts() * key.images_of_a_part(), 3 << 12);
            assert!(key.parts() > 1 && (x + y) * key.bytes() <= PART, "{pass:?}");
            let copies = key.copies(Form::AsTheyLie).iter().sum::<u64>();
            let widens = pass == Pass::Weights && reads != Numbers::Tf32;
            assert!(if widens { copies >= 4 * (x + y) } else { copies == 0 }, "{pass:?} of {reads:?}");
            assert!(key.most_room() >= copies + key.most_workspace());
            assert_eq!(key.has(Form::ChannelsLast), reads != Numbers::Tf32);
        }
    }
}
