//! A batch that the library is told in parts, by copies in which channels lie last, has in its last part the bits of a batch
//! of its own. On the fakes; on a GPU layers of `main.rs` are that large.

use crate::device_by;
use crate::machine::cudnn;
use crate::repeated::{Numbers, WORKS, one_by_one, only_on_the_fakes};
use crate::turn::has_turn;
use dtrain_cuda::driver::{Buffer, Gpu};
use dtrain_cuda::libraries::Numbers as Reads;
use dtrain_cuda::libraries::choosing_convolutions::candidates;
use dtrain_cuda::libraries::convolution::{Behind, ConvolutionKey, Pass};
use dtrain_cuda::libraries::cudnn::{Cudnn, PinnedConvolution};
use dtrain_cuda::operations::conv_lengths;
use dtrain_cuda::{CudaDevice, Half, Precision, SliceMut, ValuesMut};
use dtrain_engine::device::{Activation, Conv3dShape, Device, Operands};
use std::ops::Range;
use std::sync::Arc;

const IMAGES: usize = 2;

/// So large that each image is a part, and hardly larger; all but a few of its points are between windows, or are padding, so that the fake is
/// quick.
fn layer(pass: Pass) -> Conv3dShape {
    let (rows, columns) = if pass == Pass::Weights { (4_104, 4_096) } else { (8_208, 4_096) };
    let sparse = Conv3dShape {
        images: IMAGES,
        channels: 2,
        size: [1, rows, columns],
        outputs: 2,
        kernel: [1; 3],
        stride: [1, 27, 64],
        padding: [0; 3],
    };
    match pass {
        Pass::Inputs => {
            Conv3dShape { size: [1, 16, 64], stride: [1; 3], padding: [0, rows / 2, columns / 2], ..sparse }
        }
        _ => sparse,
    }
}

/// How an engine that gives the same bits each time does a convolution.
fn steady(gpu: &Arc<Gpu>, device: &CudaDevice, library: &Cudnn, key: &ConvolutionKey) -> PinnedConvolution {
    // With many results, so that other bits are seen.
    let small = Conv3dShape { size: [1, 16, 64], stride: [1; 3], padding: [0; 3], ..key.shape() };
    let small = ConvolutionKey::of(key.pass, Reads::Bf16, &small).expect("it is told");
    let by = candidates(gpu, library, &small).expect(WORKS).remove(0).by;
    device.gpu().context().enter().expect(WORKS);
    // SAFETY: the context was entered, and the handle goes before the device.
    let handle = unsafe { library.on(device.stream().handle()) }.expect(WORKS);
    let all = handle.candidates_channels_last(key).expect("engines");
    all.into_iter().map(|one| one.pinned().clone()).find(|pin| pin.by == by).expect("it is offered for both")
}

/// The operands of a batch.
struct Batch {
    pass: Pass,
    x: Numbers,
    w: Numbers,
    y: Numbers,
    bias: Numbers,
}

impl Batch {
    /// The bits of what a device makes of some of the images, two halves a word.
    fn result(&self, device: &CudaDevice, images: Range<usize>) -> Vec<u32> {
        let shape = Conv3dShape { images: images.len(), ..layer(self.pass) };
        let [x_len, w_len, y_len] = conv_lengths(&shape);
        let each = |len: usize| images.start * len / images.len()..images.end * len / images.len();
        let (x, y) = (self.x.halves().part(each(x_len)), self.y.halves().part(each(y_len)));
        let half = self.x.half;
        let len = match self.pass {
            Pass::Forward(_) => y_len.div_ceil(2),
            Pass::Inputs => x_len.div_ceil(2),
            Pass::Weights => w_len,
        };
        let room = Buffer::<f32>::new(device.gpu().context(), len).expect("memory");
        // SAFETY: the memory is there until it was read, and nobody else has it; halves take half of it.
        let halves = |len| ValuesMut::halves_of(unsafe { SliceMut::new(room.address(), len) }, half);
        // SAFETY: as above.
        let floats = |len| ValuesMut::from(unsafe { SliceMut::<f32>::new(room.address(), len) });
        // A library's memory is its own.
        let scratch = floats(0);
        match self.pass {
            Pass::Forward(_) => {
                let operands = Operands { x, w: self.w.with_copy(), bias: Some(self.bias.with_copy()) };
                device.conv(&shape, operands, Activation::Relu, halves(y_len), scratch);
            }
            Pass::Inputs => {
                device.conv_input_gradient_of_relu(&shape, self.w.with_copy(), y, x, halves(x_len), scratch);
            }
            Pass::Weights => device.conv_weight_gradient(&shape, x, y, floats(w_len), None, scratch),
        }
        let mut found = vec![0f32; len];
        device.download(room.read(), &mut found).expect(WORKS);
        found.into_iter().map(f32::to_bits).collect()
    }
}

fn holds(gpu: &Arc<Gpu>, library: &Cudnn, pass: Pass) {
    let (precision, half) = (Precision::Bf16, Half::Bf16);
    let own = one_by_one(gpu, precision);
    let by_library = |images, parts| {
        let shape = Conv3dShape { images, ..layer(pass) };
        let key = ConvolutionKey::of(pass, Reads::Bf16, &shape).expect("it is told");
        assert_eq!(key.parts(), parts, "{pass:?} of {images}");
        device_by(gpu, library, precision, &steady(gpu, &own, library, &key))
    };
    let [x, w, y] = conv_lengths(&layer(pass));
    let batch = Batch {
        pass,
        x: Numbers::new(&own, half, x, 1),
        w: Numbers::parameters(&own, half, w, 2),
        y: Numbers::new(&own, half, y, 3),
        bias: Numbers::parameters(&own, half, layer(pass).outputs, 4),
    };
    let found = batch.result(&by_library(IMAGES, IMAGES as u32), 0..IMAGES);
    let alone = by_library(1, 1);
    let last = batch.result(&alone, 1..2);
    assert!(last.iter().any(|bits| *bits != 0), "{pass:?}: nothing was computed");
    if pass == Pass::Weights {
        let first = batch.result(&alone, 0..1);
        let sum = |(a, b): (&u32, &u32)| (f32::from_bits(*a) + f32::from_bits(*b)).to_bits();
        assert_eq!(found, first.iter().zip(&last).map(sum).collect::<Vec<_>>(), "{pass:?}");
    } else {
        assert!(found[found.len() - last.len()..] == last, "{pass:?} of the last part");
        assert!(found[..last.len()] != last, "{pass:?}: the images are not alike");
    }
}

#[test]
fn the_last_part_of_a_batch_has_the_bits_of_a_batch_of_its_own() {
    if !has_turn(11) {
        return;
    }
    let test = "parts::the_last_part_of_a_batch_has_the_bits_of_a_batch_of_its_own";
    only_on_the_fakes(test, &[("FAKE_CUDNN_NONE", "listed")], |gpu| {
        let library = cudnn().expect("the fakes");
        for pass in [Pass::Forward(Behind::BiasRelu), Pass::Inputs, Pass::Weights] {
            holds(gpu, &library, pass);
        }
    });
}
