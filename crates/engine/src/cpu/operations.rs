//! The operations of [`Device`] on host memory: lengths are checked, work is cut into tasks, kernels are called.
//!
//! This file does not compute anything itself.

use super::pool::Cut;
use super::{
    Cpu, CpuPrecision, conv, conv_lengths, decode, elementwise, embedding, group, loss, norm, pool_areas,
    pooling, product, recurrent, rotary, same, update,
};
use crate::device::{
    Activation, AdamW, Affine, Along, Attended, AttentionShape, BatchNormOutputs, Cell, CellGradients,
    CellStep, CellsKept, ChannelNorm, Conv3dShape, CrossEntropy, Device, GATES, Gelu, Leaf, LinearShape,
    Lion, LossSums, Matrices, Newest, NormGradients, NormInputs, Operands, Outputs, Pool2d, Product,
    RotaryShape, RowNorm, Rows, Sgd, Strides, Write,
};
use dtrain_types::{Key, Wire};
use std::ops::Range;

impl Device for Cpu {
    type Ref<'a> = &'a [f32];
    type Mut<'a> = &'a mut [f32];
    type Ids<'a> = &'a [u32];
    type Sums = LossSums;
    type Scalar = f32;

    fn len(x: &[f32]) -> usize {
        x.len()
    }

    fn len_mut(x: &&mut [f32]) -> usize {
        x.len()
    }

    fn part<'b, 'a: 'b>(x: &'a [f32], range: Range<usize>) -> &'b [f32] {
        &x[range]
    }

    fn ids_part<'b, 'a: 'b>(x: &'a [u32], range: Range<usize>) -> &'b [u32] {
        &x[range]
    }

    fn ids_len(x: &[u32]) -> usize {
        x.len()
    }

    fn part_mut<'a>(x: &'a mut &mut [f32], range: Range<usize>) -> &'a mut [f32] {
        &mut x[range]
    }

    fn split_mut<'a>(x: Self::Mut<'a>, at: usize) -> (Self::Mut<'a>, Self::Mut<'a>) {
        x.split_at_mut(at)
    }

    fn read<'a>(x: &'a &mut [f32]) -> &'a [f32] {
        x
    }

    fn wait(&self) {}

    fn fill(&self, y: &mut [f32], value: f32) {
        self.each(y, |_, y| y.fill(value));
    }

    fn copy(&self, x: &[f32], y: &mut [f32]) {
        same("y", y.len(), x.len());
        self.each(y, |at, y| y.copy_from_slice(&x[at]));
    }

    fn copy_rows(&self, shape: Rows, [from, to]: [usize; 2], x: &[f32], y: &mut [f32]) {
        let Rows { rows, width } = shape;
        assert!(width <= from && width <= to, "rows of {width} lie {from} and {to} apart");
        // Behind the last row there may be nothing.
        let some = group(to);
        self.pool.run(rows * width, rows.div_ceil(some), [Cut::new(y, some * to)], |task, [y], _| {
            for (at, y) in (task * some..rows.min((task + 1) * some)).zip(y.chunks_mut(to)) {
                y[..width].copy_from_slice(&x[at * from..][..width]);
            }
        });
    }

    fn product(&self, shape: &Product, a: &[f32], b: &[f32], c: &mut [f32]) {
        self.multiply(shape, a, b, c, product::Finish::NONE);
    }

    fn product_of_leaves(&self, shape: &Product, leaf: Leaf, a: &[f32], b: &[f32], c: &mut [f32]) {
        self.multiply_leaves(shape, leaf, a, b, c);
    }

    fn linear(&self, shape: LinearShape, operands: Operands<&[f32]>, activation: Activation, y: &mut [f32]) {
        let (LinearShape { rows, inputs, outputs }, Operands { x, w, bias }) = (shape, operands);
        same("x", x.len(), rows * inputs);
        same("w", w.len(), outputs * inputs);
        same("y", y.len(), rows * outputs);
        if let Some(bias) = bias {
            same("bias", bias.len(), outputs);
        }
        let product = Product {
            m: rows,
            n: outputs,
            k: inputs,
            a: Strides::rows(inputs),
            b: Strides::transposed(inputs),
            c_row: outputs,
            write: Write::Set,
        };
        let finish = product::Finish { bias: bias.unwrap_or_default(), activation };
        self.multiply(&product, x, w, y, finish);
    }

    fn column_sums(&self, shape: Rows, x: &[f32], sums: &mut [f32]) {
        self.column_sums_of_leaves(shape, Leaf { terms: shape.rows, wire: Wire::F32 }, x, sums);
    }

    fn column_sums_of_leaves(&self, shape: Rows, leaf: Leaf, x: &[f32], sums: &mut [f32]) {
        same("x", x.len(), shape.rows * shape.width);
        same("sums", sums.len(), shape.width);
        let strip = elementwise::STRIP;
        self.pool.run(x.len(), shape.width.div_ceil(strip), [Cut::new(sums, strip)], |task, [sums], _| {
            elementwise::column_sums_of_leaves(self.isa, shape.width, leaf, task * strip, x, sums);
        });
    }

    fn conv_scratch(&self, shape: &Conv3dShape) -> Option<usize> {
        Some(conv::scratch(shape))
    }

    fn conv(
        &self,
        shape: &Conv3dShape,
        operands: Operands<&[f32]>,
        activation: Activation,
        y: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Operands { x, w, bias } = operands;
        let [x_len, w_len, y_len] = conv_lengths(shape);
        same("x", x.len(), x_len);
        same("w", w.len(), w_len);
        same("y", y.len(), y_len);
        if let Some(bias) = bias {
            same("bias", bias.len(), shape.outputs);
        }
        let finish = product::Finish { bias: bias.unwrap_or_default(), activation };
        conv::forward(self.isa, &self.pool, shape, [x, w], finish, y, scratch);
    }

    fn conv_input_gradient(
        &self,
        shape: &Conv3dShape,
        w: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        scratch: &mut [f32],
    ) {
        let [x_len, w_len, y_len] = conv_lengths(shape);
        same("w", w.len(), w_len);
        same("dy", dy.len(), y_len);
        same("dx", dx.len(), x_len);
        conv::input_gradient(self.isa, &self.pool, shape, w, dy, dx, scratch);
    }

    fn conv_weight_gradient(
        &self,
        shape: &Conv3dShape,
        x: &[f32],
        dy: &[f32],
        dw: &mut [f32],
        db: Option<&mut [f32]>,
        scratch: &mut [f32],
    ) {
        let [x_len, w_len, y_len] = conv_lengths(shape);
        same("x", x.len(), x_len);
        same("dy", dy.len(), y_len);
        same("dw", dw.len(), w_len);
        conv::weight_gradient(self.isa, &self.pool, shape, x, dy, dw, scratch);
        if let Some(db) = db {
            same("db", db.len(), shape.outputs);
            conv::bias_gradient(self.isa, &self.pool, shape, dy, db);
        }
    }

    fn max_pool(&self, shape: &Pool2d, x: &[f32], y: &mut [f32], places: &mut [f32]) {
        let [area, out] = pool_areas(shape);
        same("x", x.len(), shape.planes * area);
        same("y", y.len(), shape.planes * out);
        same("places", places.len(), shape.planes * out);
        let planes = group(area);
        let cuts = [Cut::new(y, planes * out), Cut::new(places, planes * out)];
        self.pool.run(shape.planes * area, shape.planes.div_ceil(planes), cuts, |task, [y, places], _| {
            let x = &x[task * planes * area..][..y.len() / out * area];
            pooling::max_pool(self.isa, *shape, x, y, places);
        });
    }

    fn max_pool_gradient(&self, shape: &Pool2d, places: &[f32], dy: &[f32], dx: &mut [f32]) {
        let [area, out] = pool_areas(shape);
        same("places", places.len(), shape.planes * out);
        same("dy", dy.len(), shape.planes * out);
        same("dx", dx.len(), shape.planes * area);
        let planes = group(area);
        self.pool.run(
            shape.planes * area,
            shape.planes.div_ceil(planes),
            [Cut::new(dx, planes * area)],
            |task, [dx], _| {
                let at = task * planes * out..task * planes * out + dx.len() / area * out;
                pooling::max_pool_gradient(self.isa, *shape, &places[at.clone()], &dy[at], dx);
            },
        );
    }

    fn avg_pool(&self, shape: &Pool2d, x: &[f32], y: &mut [f32]) {
        let [area, out] = pool_areas(shape);
        same("x", x.len(), shape.planes * area);
        same("y", y.len(), shape.planes * out);
        let planes = group(area);
        self.pool.run(
            shape.planes * area,
            shape.planes.div_ceil(planes),
            [Cut::new(y, planes * out)],
            |task, [y], _| {
                let x = &x[task * planes * area..][..y.len() / out * area];
                pooling::avg_pool(self.isa, *shape, x, y);
            },
        );
    }

    fn avg_pool_gradient(&self, shape: &Pool2d, dy: &[f32], dx: &mut [f32]) {
        let [area, out] = pool_areas(shape);
        same("dy", dy.len(), shape.planes * out);
        same("dx", dx.len(), shape.planes * area);
        let planes = group(area);
        self.pool.run(
            shape.planes * area,
            shape.planes.div_ceil(planes),
            [Cut::new(dx, planes * area)],
            |task, [dx], _| {
                let dy = &dy[task * planes * out..][..dx.len() / area * out];
                pooling::avg_pool_gradient(self.isa, *shape, dy, dx);
            },
        );
    }

    fn relu(&self, x: &[f32], y: &mut [f32]) {
        same("y", y.len(), x.len());
        self.each(y, |at, y| elementwise::relu(self.isa, &x[at], y));
    }

    fn relu_gradient(&self, y: &[f32], d: &mut [f32]) {
        same("d", d.len(), y.len());
        self.each(d, |at, d| elementwise::relu_gradient(self.isa, &y[at], d));
    }

    fn gelu(&self, form: Gelu, x: &[f32], y: &mut [f32]) {
        same("y", y.len(), x.len());
        self.each(y, |at, y| elementwise::gelu(self.isa, form, &x[at], y));
    }

    fn gelu_gradient(&self, form: Gelu, x: &[f32], d: &mut [f32]) {
        same("d", d.len(), x.len());
        self.each(d, |at, d| elementwise::gelu_gradient(self.isa, form, &x[at], d));
    }

    fn dropout(&self, key: Key, rate: f32, x: &[f32], y: &mut [f32]) {
        same("y", y.len(), x.len());
        assert!((0.0..1.0).contains(&rate), "a dropout rate of {rate}");
        self.each(y, |at, y| elementwise::dropout(self.isa, key, rate, at.start, &x[at], y));
    }

    fn add(&self, a: &[f32], b: &[f32], y: &mut [f32]) {
        same("a", a.len(), y.len());
        same("b", b.len(), y.len());
        self.each(y, |at, y| elementwise::add(self.isa, &a[at.clone()], &b[at], y));
    }

    fn add_to(&self, x: &[f32], y: &mut [f32]) {
        same("y", y.len(), x.len());
        self.each(y, |at, y| elementwise::add_to(self.isa, &x[at], y));
    }

    fn round(&self, wire: Wire, y: &mut [f32]) {
        self.each(y, |_, y| elementwise::round(self.isa, wire, y));
    }

    fn layer_norm(
        &self,
        norm: RowNorm,
        x: &[f32],
        gain: &[f32],
        bias: Option<&[f32]>,
        y: &mut [f32],
        saved: &mut [f32],
    ) {
        let Rows { rows, width } = norm.rows;
        same("x", x.len(), rows * width);
        same("y", y.len(), rows * width);
        same("gain", gain.len(), width);
        same("bias", bias.map_or(width, <[f32]>::len), width);
        let bias = bias.unwrap_or_default();
        same("saved", saved.len(), rows * 2);
        let some = group(width);
        let cuts = [Cut::new(y, some * width), Cut::new(saved, some * 2)];
        self.pool.run(rows * width, rows.div_ceil(some), cuts, |task, [y, saved], _| {
            let x = &x[task * some * width..][..y.len()];
            norm::layer_norm(self.isa, norm, x, gain, bias, y, saved);
        });
    }

    fn layer_norm_gradient(
        &self,
        norm: RowNorm,
        inputs: NormInputs<&[f32]>,
        gradients: NormGradients<&mut [f32]>,
        scratch: &mut [f32],
    ) {
        let Rows { rows, width } = norm.rows;
        let NormInputs { x, gain, saved, dy } = inputs;
        let NormGradients { dx, dgain, dbias } = gradients;
        same("x", x.len(), rows * width);
        same("dy", dy.len(), rows * width);
        same("gain", gain.len(), width);
        same("saved", saved.len(), rows * 2);
        same("dgain", dgain.len(), width);
        same("dbias", dbias.as_ref().map_or(width, |dbias| dbias.len()), width);
        let (dx, dbias) = (dx.unwrap_or_default(), dbias.unwrap_or_default());
        assert!(dx.is_empty() || dx.len() == x.len(), "dx has {} elements, x {}", dx.len(), x.len());
        let some = norm::ROW_BLOCK;
        let parts = &mut scratch[..self.layer_norm_scratch(norm.rows)];
        let cuts = [Cut::new(dx, some * width), Cut::new(parts, 2 * width)];
        self.pool.run(rows * width, rows.div_ceil(some), cuts, |task, [dx, sums], _| {
            let at = task * some..((task + 1) * some).min(rows);
            let (flat, pairs) = (at.start * width..at.end * width, at.start * 2..at.end * 2);
            let (x, dy) = (&x[flat.clone()], &dy[flat]);
            norm::layer_norm_gradient(self.isa, norm, x, gain, &saved[pairs], dy, dx, sums);
        });
        norm::add_parts(self.isa, &parts[..], dgain, dbias);
    }

    fn layer_norm_scratch(&self, shape: Rows) -> usize {
        shape.rows.div_ceil(norm::ROW_BLOCK) * 2 * shape.width
    }

    fn batch_norm(
        &self,
        shape: ChannelNorm,
        x: &[f32],
        affine: Affine<&[f32]>,
        outputs: BatchNormOutputs<&mut [f32]>,
    ) {
        let channels = shape.channels;
        let (Affine { gain, bias }, BatchNormOutputs { y, saved, sums }) = (affine, outputs);
        same("x", x.len(), shape.images * channels * shape.area);
        same("y", y.len(), x.len());
        same("gain", gain.len(), channels);
        same("bias", bias.len(), channels);
        same("saved", saved.len(), 2 * channels);
        same("sums", sums.len(), 2 * channels);
        assert!(shape.images * shape.area > 1, "a single value per channel has no variance");
        let (means, variances) = sums.split_at_mut(channels);
        let cuts = [Cut::new(saved, 2), Cut::new(means, 1), Cut::new(variances, 1)];
        self.pool.run(x.len(), channels, cuts, |channel, [saved, mean_sum, variance_sum], _| {
            let (mean, squares) = norm::channel_statistics(self.isa, shape, channel, x);
            let count = (shape.images * shape.area) as f64;
            saved[0] = mean as f32;
            saved[1] = (1.0 / (squares / count + f64::from(shape.epsilon)).sqrt()) as f32;
            mean_sum[0] = (shape.images as f64 * mean) as f32;
            variance_sum[0] = (shape.images as f64 * (squares / (count - 1.0))) as f32;
        });
        self.scale_planes(shape, x, y, |channel| [saved[2 * channel], saved[2 * channel + 1]], gain, bias);
    }

    fn batch_norm_by(
        &self,
        shape: ChannelNorm,
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        running: &[f32],
        y: &mut [f32],
    ) {
        let channels = shape.channels;
        same("x", x.len(), shape.images * channels * shape.area);
        same("y", y.len(), x.len());
        same("gain", gain.len(), channels);
        same("bias", bias.len(), channels);
        same("running", running.len(), 2 * channels);
        let (means, variances) = running.split_at(channels);
        let statistics = |channel: usize| {
            let variance = f64::from(variances[channel]) + f64::from(shape.epsilon);
            [means[channel], (1.0 / variance.sqrt()) as f32]
        };
        self.scale_planes(shape, x, y, statistics, gain, bias);
    }

    fn batch_norm_gradient(
        &self,
        shape: ChannelNorm,
        inputs: NormInputs<&[f32]>,
        gradients: NormGradients<&mut [f32]>,
    ) {
        let ChannelNorm { images, channels, area, .. } = shape;
        let NormInputs { x, gain, saved, dy } = inputs;
        let NormGradients { dx, dgain, dbias } = gradients;
        let dbias = dbias.expect("a batch norm has a bias");
        same("x", x.len(), images * channels * area);
        same("dy", dy.len(), x.len());
        same("gain", gain.len(), channels);
        same("saved", saved.len(), 2 * channels);
        same("dgain", dgain.len(), channels);
        same("dbias", dbias.len(), channels);
        let statistics = |channel: usize| [saved[2 * channel], saved[2 * channel + 1]];
        let cuts = [Cut::new(dgain, 1), Cut::new(dbias, 1)];
        self.pool.run(x.len(), channels, cuts, |channel, [dgain, dbias], _| {
            let [along, across] =
                norm::channel_gradient(self.isa, shape, channel, statistics(channel), x, dy);
            dgain[0] = across as f32;
            dbias[0] = along as f32;
        });
        let Some(dx) = dx else { return };
        same("dx", dx.len(), x.len());
        let count = (images * area) as f32;
        self.each_plane(shape, dx, |channel, at, dx| {
            let saved = statistics(channel);
            let means = [dbias[channel] / count, dgain[channel] / count];
            norm::plane_gradient(
                self.isa,
                saved,
                saved[1] * gain[channel],
                means,
                &x[at.clone()],
                &dy[at],
                dx,
            );
        });
    }

    fn embedding(
        &self,
        shape: Rows,
        ids: &[u32],
        table: &[f32],
        places: Option<(&[f32], usize)>,
        y: &mut [f32],
    ) {
        let Rows { rows, width } = shape;
        same("ids", ids.len(), rows);
        same("y", y.len(), rows * width);
        assert!(table.len().is_multiple_of(width), "a table of {} elements in rows of {width}", table.len());
        let (places, time) = places.unwrap_or((&[], 1));
        assert!(
            places.is_empty() || places.len() >= time * width,
            "{} elements for {time} places",
            places.len()
        );
        let some = group(width);
        self.pool.run(rows * width, rows.div_ceil(some), [Cut::new(y, some * width)], |task, [y], _| {
            let first = task * some;
            let ids = &ids[first..first + y.len() / width];
            embedding::embedding(self.isa, width, first, ids, table, places, time, y);
        });
    }

    fn embedding_gradient(
        &self,
        shape: Rows,
        ids: &[u32],
        dy: &[f32],
        write: Write,
        dtable: &mut [f32],
        dplaces: Option<(&mut [f32], usize)>,
    ) {
        same("ids", ids.len(), shape.rows);
        same("dy", dy.len(), shape.rows * shape.width);
        let (dplaces, time) = dplaces.unwrap_or((&mut [], 1));
        embedding::embedding_gradient(self.isa, shape.width, ids, dy, write, dtable, dplaces, time);
    }

    fn transpose(&self, shape: Matrices, x: &[f32], y: &mut [f32]) {
        let Matrices { matrices, rows, columns } = shape;
        same("x", x.len(), matrices * rows * columns);
        same("y", y.len(), matrices * rows * columns);
        let each = group(rows * columns);
        self.pool.run(
            x.len(),
            matrices.div_ceil(each),
            [Cut::new(y, each * rows * columns)],
            |task, [y], _| {
                recurrent::transpose(self.isa, shape, &x[task * each * rows * columns..][..y.len()], y);
            },
        );
    }

    fn sigmoid(&self, x: &[f32], y: &mut [f32]) {
        same("y", y.len(), x.len());
        self.each(y, |at, y| elementwise::sigmoid(self.isa, &x[at], y));
    }

    fn sigmoid_gradient(&self, y: &[f32], d: &mut [f32]) {
        same("d", d.len(), y.len());
        self.each(d, |at, d| elementwise::sigmoid_gradient(self.isa, &y[at], d));
    }

    fn swiglu(&self, shape: Rows, x: &[f32], y: &mut [f32]) {
        let Rows { rows, width } = shape;
        same("x", x.len(), 2 * rows * width);
        same("y", y.len(), rows * width);
        let some = group(width);
        self.pool.run(x.len(), rows.div_ceil(some), [Cut::new(y, some * width)], |task, [y], _| {
            let x = &x[task * some * 2 * width..][..2 * y.len()];
            elementwise::swiglu(self.isa, width, x, y);
        });
    }

    fn swiglu_gradient(&self, shape: Rows, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        let Rows { rows, width } = shape;
        same("x", x.len(), 2 * rows * width);
        same("dy", dy.len(), rows * width);
        same("dx", dx.len(), 2 * rows * width);
        let some = group(width);
        self.pool.run(x.len(), rows.div_ceil(some), [Cut::new(dx, some * 2 * width)], |task, [dx], _| {
            let at = task * some * width;
            let (x, dy) = (&x[2 * at..][..dx.len()], &dy[at..][..dx.len() / 2]);
            elementwise::swiglu_gradient(self.isa, width, x, dy, dx);
        });
    }

    fn rotary(&self, shape: &RotaryShape, x: &[f32], y: &mut [f32]) {
        shape.check();
        let (rows, spread) = (shape.rows(), shape.spread());
        same("x", x.len(), rows * shape.packed());
        same("y", y.len(), rows * spread);
        let some = group(spread);
        self.pool.run(y.len(), rows.div_ceil(some), [Cut::new(y, some * spread)], |task, [y], workspace| {
            let (row, count) = (task * some, y.len() / spread);
            let x = &x[row * shape.packed()..][..count * shape.packed()];
            rotary::forward(self.isa, *shape, row, x, y, workspace.rest.take(shape.head));
        });
    }

    fn rotary_gradient(&self, shape: &RotaryShape, dy: &[f32], dx: &mut [f32]) {
        shape.check();
        let (rows, packed) = (shape.rows(), shape.packed());
        same("dy", dy.len(), rows * shape.spread());
        same("dx", dx.len(), rows * packed);
        let some = group(shape.spread());
        self.pool.run(
            dy.len(),
            rows.div_ceil(some),
            [Cut::new(dx, some * packed)],
            |task, [dx], workspace| {
                let (row, count) = (task * some, dx.len() / packed);
                let dy = &dy[row * shape.spread()..][..count * shape.spread()];
                rotary::gradient(self.isa, *shape, row, dy, dx, workspace.rest.take(shape.head));
            },
        );
    }

    fn scale_rows(&self, shape: Rows, x: &[f32], by: &[f32], y: &mut [f32]) {
        let Rows { rows, width } = shape;
        for (what, len) in [("x", x.len()), ("y", y.len())] {
            same(what, len, rows * width);
        }
        same("by", by.len(), rows);
        let some = group(width);
        self.pool.run(x.len(), rows.div_ceil(some), [Cut::new(y, some * width)], |task, [y], _| {
            let first = task * some;
            elementwise::scale_rows(self.isa, width, &x[first * width..][..y.len()], &by[first..], y);
        });
    }

    fn dot_rows(&self, shape: Rows, a: &[f32], b: &[f32], y: &mut [f32]) {
        let Rows { rows, width } = shape;
        for (what, len) in [("a", a.len()), ("b", b.len())] {
            same(what, len, rows * width);
        }
        same("y", y.len(), rows);
        let some = group(width);
        self.pool.run(a.len(), rows.div_ceil(some), [Cut::new(y, some)], |task, [y], _| {
            let from = task * some * width;
            let part = from..from + y.len() * width;
            elementwise::dot_rows(self.isa, width, &a[part.clone()], &b[part], y);
        });
    }

    fn recurrent_cells(
        &self,
        step: &CellStep,
        biases: [&[f32]; 2],
        gates: &mut [f32],
        states: &mut [f32],
        y: &mut [f32],
    ) {
        let out = cell_lengths(step, states.len());
        for bias in biases {
            same("bias", bias.len(), step.cell.gates() * step.hidden);
        }
        same("gates", gates.len(), GATES * out);
        same("y", y.len(), out);
        recurrent::forward(self.isa, &self.pool, step, biases, [gates, states, y]);
    }

    fn recurrent_gradient(
        &self,
        step: &CellStep,
        kept: CellsKept<&[f32]>,
        gradients: CellGradients<&mut [f32]>,
    ) {
        let out = cell_lengths(step, kept.states.len());
        same("gates", kept.gates.len(), GATES * out);
        same("y", kept.y.len(), out);
        same("dy", gradients.dy.len(), out);
        same("dstates", gradients.dstates.len(), step.rows * step.hidden);
        same("dgates", gradients.dgates.len(), GATES * out);
        recurrent::gradient(self.isa, &self.pool, step, kept, gradients);
    }

    fn attention(
        &self,
        shape: &AttentionShape,
        qkv: &[f32],
        y: &mut [f32],
        saved: &mut [f32],
        _scratch: &mut [f32],
    ) {
        let out = shape.batch * shape.time * shape.heads * shape.head;
        same("qkv", qkv.len(), 3 * out);
        same("y", y.len(), out);
        same("saved", saved.len(), self.attention_saved(shape));
        self.attend(shape, qkv, y, saved);
    }

    fn attention_gradient(
        &self,
        shape: &AttentionShape,
        inputs: Attended<&[f32]>,
        dqkv: &mut [f32],
        _scratch: &mut [f32],
    ) {
        let Attended { qkv, y, saved, dy } = inputs;
        let out = shape.batch * shape.time * shape.heads * shape.head;
        same("qkv", qkv.len(), 3 * out);
        same("y", y.len(), out);
        same("saved", saved.len(), self.attention_saved(shape));
        same("dy", dy.len(), out);
        same("dqkv", dqkv.len(), 3 * out);
        self.attend_gradient(shape, inputs, dqkv);
    }

    fn attention_saved(&self, shape: &AttentionShape) -> usize {
        shape.batch * shape.heads * shape.time
    }

    fn attention_scratch(&self, _shape: &AttentionShape) -> usize {
        0
    }

    fn decodes(&self) -> bool {
        true
    }

    fn kv_cache_len(&self, shape: &AttentionShape) -> usize {
        decode::cache_len(shape)
    }

    fn attention_of_newest(
        &self,
        shape: &AttentionShape,
        newest: Newest,
        qkv: &[f32],
        cache: &mut [f32],
        y: &mut [f32],
    ) {
        let out = shape.batch * newest.count * shape.heads * shape.head;
        same("qkv", qkv.len(), 3 * out);
        same("y", y.len(), out);
        assert!(newest.seen + newest.count <= shape.time, "{newest:?} in a cache of {} places", shape.time);
        let cache = &mut cache[..self.kv_cache_len(shape)];
        assert!(self.precision() == CpuPrecision::F32, "a CPU goes on with texts in f32");
        decode::forward(self.isa, &self.pool, (shape, newest), qkv, cache, y);
    }

    fn cross_entropy(
        &self,
        shape: Rows,
        options: &CrossEntropy<'_>,
        logits: Outputs<&[f32], &mut [f32]>,
        targets: &[u32],
    ) -> LossSums {
        loss::assert_fits(shape, options, &logits);
        same("targets", targets.len(), shape.rows);
        loss::cross_entropy(self.isa, shape.width, options, logits, targets)
    }

    fn mixed_cross_entropy(
        &self,
        shape: Rows,
        options: &CrossEntropy<'_>,
        logits: Outputs<&[f32], &mut [f32]>,
        targets: &[u32],
    ) -> LossSums {
        loss::assert_fits(shape, options, &logits);
        same("targets", targets.len(), 3 * shape.rows);
        loss::mixed_cross_entropy(self.isa, shape.width, options, logits, targets.as_chunks().0)
    }

    fn arg_max(&self, shape: Rows, logits: &[f32], best: &mut [u32]) {
        same("logits", logits.len(), shape.rows * shape.width);
        same("best", best.len(), shape.rows);
        loss::arg_max(self.isa, shape.width, logits, best);
    }

    fn sums(&self, of: LossSums) -> LossSums {
        of
    }

    fn squared_error(
        &self,
        shape: Rows,
        scale: f32,
        outputs: Outputs<&[f32], &mut [f32]>,
        targets: &[f32],
    ) -> LossSums {
        same("outputs", outputs.read().len(), shape.rows * shape.width);
        same("targets", targets.len(), shape.rows * shape.width);
        loss::squared_error(self.isa, shape.width, scale, outputs, targets)
    }

    fn sum_of_squares(&self, g: &[f32], scale: f32) -> f64 {
        update::sum_of_squares(self.isa, &self.pool, scale, g)
    }

    fn adamw(&self, o: &AdamW, g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        for (what, len) in [("p", p.len()), ("m", m.len()), ("v", v.len())] {
            same(what, len, g.len());
        }
        update::adamw(self.isa, &self.pool, o, g, [p, m, v]);
    }

    fn adamw_to(&self, o: &AdamW, g: &[f32], from: [&[f32]; 3], to: [&mut [f32]; 3]) {
        for len in from.map(<[f32]>::len).into_iter().chain(to.iter().map(|to| to.len())) {
            same("a state", len, g.len());
        }
        update::adamw_to(self.isa, &self.pool, o, g, from, to);
    }

    fn sgd(&self, o: &Sgd, g: &[f32], p: &mut [f32], m: &mut [f32]) {
        same("p", p.len(), g.len());
        if o.momentum == 0.0 {
            return self.each(p, |at, p| update::plain(self.isa, o, &g[at], p));
        }
        same("m", m.len(), g.len());
        update::momentum(self.isa, &self.pool, o, g, [p, m]);
    }

    fn lion(&self, o: &Lion, g: &[f32], p: &mut [f32], m: &mut [f32]) {
        same("p", p.len(), g.len());
        same("m", m.len(), g.len());
        update::lion(self.isa, &self.pool, o, g, [p, m]);
    }

    fn along(&self, o: &Along, way: &[f32], p: &mut [f32]) {
        same("p", p.len(), way.len());
        self.each(p, |at, p| elementwise::combine(self.isa, [-o.step, o.decay], &way[at], p));
    }

    fn unit(&self, least: f64, x: &[f32], y: &mut [f32]) {
        same("y", y.len(), x.len());
        let norm = self.sum_of_squares(x, 1.0).sqrt().max(least);
        self.combine([(1.0 / norm) as f32, 0.0], x, y);
    }

    fn combine(&self, by: [f32; 2], x: &[f32], y: &mut [f32]) {
        same("y", y.len(), x.len());
        self.each(y, |at, y| elementwise::combine(self.isa, by, &x[at], y));
    }

    fn blend(&self, momentum: f32, scale: f32, sums: &[f32], running: &mut [f32]) {
        same("running", running.len(), sums.len());
        elementwise::blend(self.isa, momentum, scale, sums, running);
    }

    fn all_finite(&self, x: &[f32]) -> bool {
        elementwise::all_finite(self.isa, x)
    }
}

/// Elements of the outputs of a layer of recurrent cells, whose states are as long as they must be.
fn cell_lengths(step: &CellStep, states: usize) -> usize {
    let out = step.rows * step.time * step.hidden;
    assert!(step.at < step.time, "place {} of {}", step.at, step.time);
    same("states", states, if step.cell == Cell::Lstm { out } else { 0 });
    out
}
