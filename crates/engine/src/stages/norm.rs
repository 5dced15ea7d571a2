//! Normalisation: over the last dimension of each row, or per channel over the micro-batch.

use crate::describe::Description;
use crate::device::{
    Affine, BatchNormOutputs, Centre, ChannelNorm, Device, NormGradients, NormInputs, RowNorm, Rows, reborrow,
};
use crate::param_layout::{Init, ParamLayout};
use crate::stage::{ArenaPlan, Backward, Forward, Mode, Needs, Pass, Shape, Stage};

/// Layer norm over the last dimension, with gain and bias; or RMS norm, with gain alone: each element divided by the root of the mean of
/// squares.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// Of no row: a pass has its own.
    norm: RowNorm,
    layout: ParamLayout,
}

impl LayerNorm {
    /// A layer norm that adds 1e-5 to the variance.
    #[must_use]
    pub fn new() -> Self {
        Self::about(Centre::Mean)
    }

    /// An RMS norm that adds 1e-5 to the mean of squares.
    #[must_use]
    pub fn rms() -> Self {
        Self::about(Centre::Zero)
    }

    /// Adds this to the variance, or to the mean of squares.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f32) -> Self {
        self.norm.epsilon = epsilon;
        self
    }

    fn about(centre: Centre) -> Self {
        let norm = RowNorm { rows: Rows { rows: 0, width: 0 }, centre, epsilon: 1e-5 };
        Self { norm, layout: ParamLayout::NOTHING }
    }

    fn of(&self, rows: usize) -> RowNorm {
        RowNorm { rows: Rows { rows, ..self.norm.rows }, ..self.norm }
    }

    fn has_bias(&self) -> bool {
        self.norm.centre == Centre::Mean
    }

    /// The gain, and behind it the bias.
    fn parts<'b, 'a: 'b, D: Device>(&self, params: D::Ref<'a>) -> (D::Ref<'b>, Option<D::Ref<'b>>) {
        let width = self.norm.rows.width;
        (D::part(params, 0..width), self.has_bias().then(|| D::part(params, width..2 * width)))
    }

    fn gradients<D: Device>(&self, pass: &Pass<'_, D>, io: Backward<'_, D>, outer: Option<D::Ref<'_>>) {
        let x = io.x.values();
        let norm = self.of(D::len(x) / self.norm.rows.width);
        let (gain, _) = self.parts::<D>(io.params);
        let saved = D::part(D::read(&io.saved), 0..2 * norm.rows.rows);
        let len = pass.device.layer_norm_scratch(norm.rows);
        let (mut scratch, unwanted) = D::split_mut(io.scratch, len);
        let scratch = D::part_mut(&mut scratch, 0..len);
        // Of what stays as it is, nobody reads them.
        let to = if D::len_mut(&io.grads) > 0 { io.grads } else { unwanted };
        let (dgain, rest) = D::split_mut(to, norm.rows.width);
        let dbias = self.has_bias().then(|| D::split_mut(rest, norm.rows.width).0);
        let dy = D::read(&io.dy);
        let inputs = NormInputs { x: reborrow::<D>(x), gain: reborrow::<D>(gain), saved, dy };
        let gradients = NormGradients { dx: io.dx, dgain, dbias };
        match outer {
            None => pass.device.layer_norm_gradient(norm, inputs, gradients, scratch),
            Some(outer) => {
                pass.device.layer_norm_gradient_plus(norm, inputs, reborrow::<D>(outer), gradients, scratch);
            }
        }
    }
}

impl Default for LayerNorm {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Device> Stage<D> for LayerNorm {
    fn kind(&self) -> &'static str {
        match self.norm.centre {
            Centre::Mean => "layer_norm",
            Centre::Zero => "rms_norm",
        }
    }

    fn describe(&self) -> Description {
        let RowNorm { rows: Rows { width, .. }, centre, epsilon } = self.norm;
        match centre {
            Centre::Mean => Description::LayerNorm { width, epsilon },
            Centre::Zero => Description::RmsNorm { width, epsilon },
        }
    }

    fn decodes(&self) -> bool {
        true
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let width = input.width()?;
        self.norm.rows.width = width;
        self.layout = match self.has_bias() {
            true => gain_and_bias(width),
            false => ParamLayout::NOTHING.with("weight", &[width], Init::Constant(1.0)),
        };
        let shape = Rows { rows: input.rows() * input.per_row() / width, width };
        space.saved += 2 * shape.rows;
        space.scratch += device.layer_norm_scratch(shape) + 2 * width;
        Ok(input.clone())
    }

    fn forward(&self, pass: &Pass<'_, D>, mut io: Forward<'_, D>) {
        let x = io.x.values();
        let norm = self.of(D::len(x) / self.norm.rows.width);
        let (gain, bias) = self.parts::<D>(io.params);
        let saved = D::part_mut(&mut io.saved, 0..2 * norm.rows.rows);
        pass.device.layer_norm(norm, x, gain, bias, io.y, saved);
    }

    fn adds_back(&self) -> bool {
        true
    }

    fn leaves_out_gradients(&self) -> bool {
        true
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        self.gradients(pass, io, None);
    }

    fn backward_plus(&self, pass: &Pass<'_, D>, io: Backward<'_, D>, outer: D::Ref<'_>) {
        self.gradients(pass, io, Some(outer));
    }
}

/// Batch norm per channel (epsilon 1e-5): over rows and area of `[channels, ...]`, over rows of `[features]`.
///
/// Training uses the statistics of the micro-batch. Evaluation uses the running ones: each micro-batch gives its
/// mean and unbiased variance times its rows; their sums over the step, divided by its rows, are blended in with
/// momentum [`BatchNorm::MOMENTUM`], once a step.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    shape: ChannelNorm,
    /// Of a channel.
    dimensions: usize,
    layout: ParamLayout,
}

impl BatchNorm {
    /// Share of the newest step in the running statistics.
    pub const MOMENTUM: f32 = 0.1;

    /// A batch norm.
    #[must_use]
    pub fn new() -> Self {
        let shape = ChannelNorm { images: 0, channels: 0, area: 0, epsilon: 1e-5 };
        Self { shape, dimensions: 0, layout: ParamLayout::NOTHING }
    }

    fn of(&self, rows: usize) -> ChannelNorm {
        ChannelNorm { images: rows, ..self.shape }
    }
}

impl Default for BatchNorm {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Device> Stage<D> for BatchNorm {
    fn kind(&self) -> &'static str {
        "batch_norm"
    }

    fn describe(&self) -> Description {
        let ChannelNorm { channels, epsilon, .. } = self.shape;
        Description::BatchNorm { channels, dimensions: self.dimensions, epsilon }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn plan(&mut self, _: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let dims = input.dims()?;
        let [channels, area @ ..] = dims else { return Err("its input has no dimension".into()) };
        self.dimensions = area.len();
        let area = area.iter().product::<usize>();
        self.shape = ChannelNorm { images: input.rows(), channels: *channels, area, ..self.shape };
        if area == 1 {
            space.min_rows = space.min_rows.max(2);
        }
        if area * input.rows() == 1 {
            return Err(
                "a micro-batch of one row gives it a single value per channel, which has no variance".into(),
            );
        }
        self.layout = gain_and_bias(*channels)
            .with_stat("running_mean", &[*channels], Init::Constant(0.0))
            .with_stat("running_var", &[*channels], Init::Constant(1.0));
        space.saved += 2 * channels;
        space.scratch += 2 * channels;
        Ok(input.clone())
    }

    fn leaves_out_gradients(&self) -> bool {
        true
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let (shape, x) = (self.of(pass.rows), io.x.values());
        let (gain, bias) = halves::<D>(io.params, shape.channels);
        match (pass.mode, io.stat_sums) {
            (Mode::Train, Some(sums)) => {
                let (saved, _) = D::split_mut(io.saved, 2 * shape.channels);
                pass.device.batch_norm(
                    shape,
                    x,
                    Affine { gain, bias },
                    BatchNormOutputs { y: io.y, saved, sums },
                );
            }
            (Mode::Train, None) => panic!("a training pass lends memory for statistics"),
            (Mode::Evaluate, _) => pass.device.batch_norm_by(shape, x, gain, bias, io.stats, io.y),
        }
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let shape = self.of(pass.rows);
        let (gain, _) = halves::<D>(io.params, shape.channels);
        let saved = D::part(D::read(&io.saved), 0..2 * shape.channels);
        // Of what stays as it is, nobody reads them.
        let to = if D::len_mut(&io.grads) > 0 { io.grads } else { io.scratch };
        let (dgain, rest) = D::split_mut(to, shape.channels);
        let dbias = Some(D::split_mut(rest, shape.channels).0);
        let dy = D::read(&io.dy);
        let inputs = NormInputs { x: reborrow::<D>(io.x.values()), gain: reborrow::<D>(gain), saved, dy };
        pass.device.batch_norm_gradient(shape, inputs, NormGradients { dx: io.dx, dgain, dbias });
    }
}

fn gain_and_bias(width: usize) -> ParamLayout {
    ParamLayout::NOTHING.with("weight", &[width], Init::Constant(1.0)).with(
        "bias",
        &[width],
        Init::Constant(0.0),
    )
}

fn halves<D: Device>(params: D::Ref<'_>, width: usize) -> (D::Ref<'_>, D::Ref<'_>) {
    (D::part(params, 0..width), D::part(params, width..2 * width))
}
