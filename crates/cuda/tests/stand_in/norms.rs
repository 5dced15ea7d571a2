//! Checks of layer norm, RMS norm and batch norm.

use super::{Buffer, Extent, StandIn, cpu, numbers, orders};
use dtrain_cuda::operations;
use dtrain_engine::device::{
    Affine, BatchNormOutputs, ChannelNorm, Device, NormGradients, NormInputs, RowNorm, Rows,
};

/// Rows and width: some rows are longer than what a thread keeps of them, and there are many runs of rows.
const ROWS: [(usize, usize); 10] =
    [(1, 3), (130, 33), (7, 256), (5, 1000), (3, 1289), (2, 2056), (2050, 8), (70, 520), (65, 64), (70, 37)];

fn saved_of(norm: RowNorm, x: &[f32]) -> Vec<f32> {
    let (mut y, mut saved) = (vec![0.0; x.len()], vec![0.0; 2 * norm.rows.rows]);
    cpu().layer_norm(norm, x, &vec![1.0; norm.rows.width], None, &mut y, &mut saved);
    saved
}

/// Whether there is a bias.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bias {
    Given,
    Absent,
}

pub fn layer_norm(q: &StandIn, extent: Extent) {
    normalise(q, extent, RowNorm::layer, Bias::Given);
}

pub fn layer_norm_without_bias(q: &StandIn, extent: Extent) {
    normalise(q, extent, RowNorm::layer, Bias::Absent);
}

pub fn rms_norm(q: &StandIn, extent: Extent) {
    normalise(q, extent, RowNorm::rms, Bias::Absent);
}

fn normalise(q: &StandIn, extent: Extent, kind: fn(Rows, f32) -> RowNorm, with: Bias) {
    for &(rows, width) in extent.of(1, &ROWS) {
        let norm = kind(Rows { rows, width }, 1e-5);
        let what = format!("{:?} norm", norm.centre);
        // Their mean is none that vanishes.
        let x: Vec<f32> = numbers(1, rows * width).iter().map(|v| v + 0.25).collect();
        let (gain, bias) = (numbers(2, width), numbers(3, width));
        let [x_, gain_, bias_] =
            [("x", &x), ("gain", &gain), ("bias", &bias)].map(|(name, x)| Buffer::of(q, name, x));
        let (y, saved) = (Buffer::empty(q, "y", rows * width), Buffer::empty(q, "saved", 2 * rows));
        let is_given = with == Bias::Given;
        operations::layer_norm(
            q,
            norm,
            x_.read(),
            gain_.read(),
            is_given.then(|| bias_.read()),
            y.write(),
            saved.write(),
        );
        let (mut wanted, bias) = (vec![0.0; x.len()], is_given.then_some(&bias[..]));
        cpu().layer_norm(norm, &x, &gain, bias, &mut wanted, &mut vec![0.0; 2 * rows]);
        y.is_near(&what, &wanted);
        y.has_bits(&what, &orders::layer_norm(norm, &x, &gain, bias));
        saved.is_near(&what, &saved_of(norm, &x));
    }
}

pub fn layer_norm_gradient(q: &StandIn, extent: Extent) {
    gradient(q, extent, RowNorm::layer, Bias::Given);
}

pub fn layer_norm_without_bias_gradient(q: &StandIn, extent: Extent) {
    gradient(q, extent, RowNorm::layer, Bias::Absent);
}

pub fn rms_norm_gradient(q: &StandIn, extent: Extent) {
    gradient(q, extent, RowNorm::rms, Bias::Absent);
}

fn gradient(q: &StandIn, extent: Extent, kind: fn(Rows, f32) -> RowNorm, with: Bias) {
    for &(rows, width) in extent.of(1, &ROWS) {
        let norm = kind(Rows { rows, width }, 1e-5);
        let what = format!("gradient of {:?} norm", norm.centre);
        let (x, gain, dy) = (numbers(1, rows * width), numbers(2, width), numbers(4, rows * width));
        let saved = saved_of(norm, &x);
        let [x_, gain_, dy_, saved_] = [("x", &x), ("gain", &gain), ("dy", &dy), ("saved", &saved)]
            .map(|(name, x)| Buffer::of(q, name, x));
        let (mut dx, mut dgain, mut dbias) = (vec![0.0; x.len()], vec![0.0; width], vec![0.0; width]);
        let mut room = vec![0.0; cpu().layer_norm_scratch(norm.rows)];
        let wants_dbias = with == Bias::Given;
        cpu().layer_norm_gradient(
            norm,
            NormInputs { x: &x, gain: &gain, saved: &saved, dy: &dy },
            NormGradients {
                dx: Some(&mut dx),
                dgain: &mut dgain,
                dbias: wants_dbias.then_some(&mut dbias[..]),
            },
            &mut room,
        );
        for with_dx in [true, false] {
            let out = Buffer::empty(q, "dx", rows * width);
            let (out_gain, out_bias) = (Buffer::empty(q, "dgain", width), Buffer::empty(q, "dbias", width));
            let scratch = Buffer::empty(q, "scratch", operations::layer_norm_scratch(norm.rows));
            operations::layer_norm_gradient(
                q,
                norm,
                NormInputs { x: x_.read(), gain: gain_.read(), saved: saved_.read(), dy: dy_.read() },
                None,
                NormGradients {
                    dx: with_dx.then(|| out.write()),
                    dgain: out_gain.write(),
                    dbias: wants_dbias.then(|| out_bias.write()),
                },
                scratch.write(),
            );
            if with_dx {
                out.is_near(&what, &dx);
            }
            let [gains, biases] = orders::layer_norm_sums(norm.rows, &x, &saved, &dy);
            out_gain.is_near(&what, &dgain);
            out_gain.has_bits(&what, &gains);
            if wants_dbias {
                out_bias.is_near(&what, &dbias);
                out_bias.has_bits(&what, &biases);
            }
        }
    }
}

/// Images, channels, area; the second fills a run of values, the third has more than one.
const CHANNELS: [(usize, usize, usize); 9] = [
    (4, 3, 25),
    (2, 2, 2048),
    (3, 2, 2049),
    (2, 17, 1),
    (1, 2, 37),
    (1, 300, 2),
    (9, 5, 13),
    // From one turn of a loop to the next it is more than a channel.
    (2, 5, 900),
    (9, 5, 37),
];

fn norm(&(images, channels, area): &(usize, usize, usize)) -> (ChannelNorm, usize) {
    (ChannelNorm { images, channels, area, epsilon: 1e-5 }, images * channels * area)
}

pub fn batch_norm(q: &StandIn, extent: Extent) {
    for (shape, len) in extent.of(1, &CHANNELS).iter().map(norm) {
        let channels = shape.channels;
        let x: Vec<f32> = numbers(1, len).iter().map(|v| v * 2.0 - 3.0).collect();
        let (gain, bias) = (numbers(2, channels), numbers(3, channels));
        let [x_, gain_, bias_] =
            [("x", &x), ("gain", &gain), ("bias", &bias)].map(|(name, x)| Buffer::of(q, name, x));
        let [y, saved, sums] = [("y", len), ("saved", 2 * channels), ("sums", 2 * channels)]
            .map(|(name, len)| Buffer::empty(q, name, len));
        let scratch = Buffer::<f64>::empty(q, "scratch", operations::batch_norm_scratch(shape));
        operations::batch_norm(
            q,
            shape,
            x_.read(),
            Affine { gain: gain_.read(), bias: bias_.read() },
            BatchNormOutputs { y: y.write(), saved: saved.write(), sums: sums.write() },
            scratch.write(),
        );
        let [mut y2, mut saved2, mut sums2] =
            [vec![0.0; len], vec![0.0; 2 * channels], vec![0.0; 2 * channels]];
        cpu().batch_norm(
            shape,
            &x,
            Affine { gain: &gain, bias: &bias },
            BatchNormOutputs { y: &mut y2, saved: &mut saved2, sums: &mut sums2 },
        );
        for (buffer, wanted) in [(y, y2), (saved, saved2), (sums, sums2)] {
            buffer.is_near(&format!("batch_norm of {shape:?}"), &wanted);
        }
    }
}

pub fn batch_norm_by(q: &StandIn, extent: Extent) {
    for (shape, len) in extent.of(1, &CHANNELS).iter().map(norm) {
        let shape = ChannelNorm { epsilon: 1e-2, ..shape };
        let channels = shape.channels;
        let (x, gain, bias) = (numbers(1, len), numbers(2, channels), numbers(3, channels));
        let variances = numbers(4, channels).into_iter().map(|v| v + 1.1);
        let running: Vec<f32> = numbers(5, channels).into_iter().chain(variances).collect();
        let [x_, gain_, bias_, running_] =
            [("x", &x), ("gain", &gain), ("bias", &bias), ("running", &running)]
                .map(|(name, x)| Buffer::of(q, name, x));
        let y = Buffer::empty(q, "y", len);
        operations::batch_norm_by(
            q,
            shape,
            x_.read(),
            gain_.read(),
            bias_.read(),
            running_.read(),
            y.write(),
        );
        let mut wanted = vec![0.0; len];
        cpu().batch_norm_by(shape, &x, &gain, &bias, &running, &mut wanted);
        // One formula, one order: the same bits.
        y.has_bits(&format!("batch_norm_by of {shape:?}"), &wanted);
    }
}

pub fn batch_norm_gradient(q: &StandIn, extent: Extent) {
    for (shape, len) in extent.of(1, &CHANNELS).iter().map(norm) {
        let channels = shape.channels;
        let (x, gain, dy) = (numbers(1, len), numbers(2, channels), numbers(4, len));
        let mut saved = vec![0.0; 2 * channels];
        cpu().batch_norm(
            shape,
            &x,
            Affine { gain: &gain, bias: &gain },
            BatchNormOutputs {
                y: &mut vec![0.0; len],
                saved: &mut saved,
                sums: &mut vec![0.0; 2 * channels],
            },
        );
        let (mut dx, mut dgain, mut dbias) = (vec![0.0; len], vec![0.0; channels], vec![0.0; channels]);
        cpu().batch_norm_gradient(
            shape,
            NormInputs { x: &x, gain: &gain, saved: &saved, dy: &dy },
            NormGradients { dx: Some(&mut dx), dgain: &mut dgain, dbias: Some(&mut dbias) },
        );
        let [x_, gain_, saved_, dy_] = [("x", &x), ("gain", &gain), ("saved", &saved), ("dy", &dy)]
            .map(|(name, x)| Buffer::of(q, name, x));
        for with_dx in [true, false] {
            let [out, out_gain, out_bias] = [("dx", len), ("dgain", channels), ("dbias", channels)]
                .map(|(name, len)| Buffer::empty(q, name, len));
            let scratch = Buffer::<f64>::empty(q, "scratch", operations::batch_norm_scratch(shape));
            operations::batch_norm_gradient(
                q,
                shape,
                NormInputs { x: x_.read(), gain: gain_.read(), saved: saved_.read(), dy: dy_.read() },
                NormGradients {
                    dx: with_dx.then(|| out.write()),
                    dgain: out_gain.write(),
                    dbias: Some(out_bias.write()),
                },
                scratch.write(),
            );
            if with_dx {
                out.is_near(&format!("batch_norm_gradient of {shape:?}"), &dx);
            }
            out_gain.is_near(&format!("batch_norm_gradient of {shape:?}"), &dgain);
            out_bias.is_near(&format!("batch_norm_gradient of {shape:?}"), &dbias);
        }
    }
}
