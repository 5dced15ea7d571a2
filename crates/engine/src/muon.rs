//! Muon: its options, which parameters it is for, and what it keeps of them.
//!
//! It does not know how a matrix is made orthogonal, nor what an update does.
//!
//! *Source*: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, as `torch.optim.Muon` has it.

use crate::adam::Adam;
use crate::error::{EngineError, within};
use crate::layout::{Layout, Section, Tensor};
use crate::newton_schulz::NewtonSchulz;
use crate::param_layout::Init;

/// The options of Muon. Parameters that are no [matrices of hidden layers](hidden_matrices) are updated by Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// What a step leaves of the momentum.
    pub momentum: f32,
    /// Nesterov's look-ahead.
    pub nesterov: bool,
    /// Decoupled decay, times the learning rate.
    pub weight_decay: f32,
    /// How the momentum is made orthogonal.
    pub newton_schulz: NewtonSchulz,
    /// How the learning rate follows the shape of a matrix.
    pub adjust_lr: AdjustLr,
    /// What updates the other parameters.
    pub adam: Adam,
    /// What the learning rate is multiplied by for them.
    pub adam_lr_factor: f64,
}

dtrain_types::words!(
    /// How the learning rate follows the shape of a matrix.
    #[derive(Default)]
    AdjustLr {
        /// `sqrt(max(1, rows / columns))`.
        #[default]
        Original = "original",
        /// `0.2 sqrt(max(rows, columns))`: updates are as large as AdamW's, and so may learning rates be (*Source*: Liu et al., "Muon is
        /// scalable for LLM training", 2025).
        MatchRmsAdamW = "match_rms_adamw",
    }
);

impl AdjustLr {
    /// What the learning rate of such a matrix is multiplied by.
    #[must_use]
    pub fn factor(self, [rows, columns]: [usize; 2]) -> f64 {
        match self {
            Self::Original => (rows as f64 / columns as f64).max(1.0).sqrt(),
            Self::MatchRmsAdamW => 0.2 * (rows.max(columns) as f64).sqrt(),
        }
    }
}

impl Default for Muon {
    /// PyTorch's of both, with one learning rate.
    fn default() -> Self {
        Self {
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.1,
            newton_schulz: NewtonSchulz::default(),
            adjust_lr: AdjustLr::default(),
            adam: Adam { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 },
            adam_lr_factor: 1.0,
        }
    }
}

impl Muon {
    /// Whether every number makes sense.
    ///
    /// *Errors*: [`EngineError::Option`].
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        within("optimizer.momentum", self.momentum, 1.0)?;
        within("optimizer.weight_decay", self.weight_decay, f32::MAX)?;
        within("optimizer.adamw_lr_factor", self.adam_lr_factor as f32, f32::MAX)?;
        self.newton_schulz.check()?;
        self.adam.check()
    }
}

/// The weight matrices of hidden layers, in the order of the layout: all parameters of two dimensions but embeddings and the output
/// layer; or those that [names](crate::Grouping::hidden) say. What is frozen is none.
///
/// An embedding is a parameter of a stage of that kind, or one in whose name a part has `emb`, or is `wte` or `wpe`. The output layer is
/// the last matrix, if nothing but its bias follows.
#[must_use]
pub fn hidden_matrices(layout: &Layout) -> Vec<&Tensor> {
    let output = output_layer(layout).map(|tensor| tensor.offset);
    let is_hidden = |tensor: &Tensor| match tensor.hidden {
        Some(named) => named,
        None => !is_embedding(layout, tensor) && Some(tensor.offset) != output,
    };
    parameters(layout).filter(|tensor| is_matrix(tensor) && !tensor.frozen && is_hidden(tensor)).collect()
}

fn parameters(layout: &Layout) -> impl Iterator<Item = &Tensor> {
    layout.tensors.iter().filter(|tensor| tensor.section == Section::Parameters)
}

fn is_matrix(tensor: &Tensor) -> bool {
    tensor.shape.len() == 2 && tensor.elements() > 0
}

fn is_embedding(layout: &Layout, tensor: &Tensor) -> bool {
    let of_stage =
        layout.stages.iter().any(|it| it.kind == "embedding" && it.parameters.contains(&tensor.offset));
    let named = |part: &str| part.to_lowercase().contains("emb") || ["wte", "wpe"].contains(&part);
    of_stage || tensor.name.split('.').any(named)
}

/// The last matrix, if nothing but its bias follows, and no norm.
fn output_layer(layout: &Layout) -> Option<&Tensor> {
    let all: Vec<&Tensor> = parameters(layout).collect();
    let last = all.iter().rposition(|tensor| is_matrix(tensor))?;
    let is_alone = match &all[last + 1..] {
        [] => true,
        [bias] => bias.name.ends_with("bias") && bias.shape == all[last].shape[..1],
        _ => false,
    };
    is_alone.then_some(all[last])
}

/// What it keeps: the momentum of every parameter, at its offset; behind them the second moments of those that Adam updates, in the
/// order of the layout. They are called as AdamW's are.
#[must_use]
pub(crate) fn kept(layout: &Layout) -> Vec<Tensor> {
    let kept = |letter: char, tensor: &Tensor, offset: usize| {
        let name = format!("{letter}.{}", tensor.name);
        Tensor::new(name, &tensor.shape, Section::First, offset, Init::Constant(0.0))
    };
    let hidden: Vec<usize> = hidden_matrices(layout).iter().map(|tensor| tensor.offset).collect();
    let mut all: Vec<Tensor> = parameters(layout).map(|tensor| kept('m', tensor, tensor.offset)).collect();
    let mut end = layout.parameters;
    for tensor in parameters(layout).filter(|tensor| !hidden.contains(&tensor.offset)) {
        all.push(kept('v', tensor, end));
        end += tensor.elements();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::StageSlice;

    fn layout(tensors: &[(&str, &[usize])]) -> Layout {
        let mut layout = Layout::default();
        for (name, shape) in tensors {
            let tensor =
                Tensor::new(*name, shape, Section::Parameters, layout.parameters, Init::Constant(0.0));
            layout.parameters = tensor.range().end;
            layout.tensors.push(tensor);
        }
        layout
    }

    fn names(layout: &Layout) -> Vec<&str> {
        hidden_matrices(layout).iter().map(|tensor| &*tensor.name).collect()
    }

    #[test]
    fn hidden_are_all_matrices_but_embeddings_and_the_output_layer() {
        let mlp = [
            ("0.weight", &[8, 5][..]),
            ("0.bias", &[8]),
            ("2.weight", &[6, 8]),
            ("4.weight", &[3, 6]),
            ("4.bias", &[3]),
        ];
        assert_eq!(names(&layout(&mlp)), ["0.weight", "2.weight"]);
        let hugging = [
            ("model.wte.weight", &[50, 8][..]),
            ("word_embeddings.weight", &[9, 8]),
            ("h.0.attn.weight", &[24, 8]),
            ("conv.weight", &[8, 3, 3, 3]),
            ("norm.weight", &[8]),
            ("norm.bias", &[8]),
        ];
        // Its head is its table: no output layer of its own follows.
        assert_eq!(names(&layout(&hugging)), ["h.0.attn.weight"]);
        // Nor is what a norm without a bias follows, however long that is.
        let llama =
            [("embed_tokens.weight", &[50, 8][..]), ("down_proj.weight", &[8, 20]), ("norm.weight", &[8])];
        assert_eq!(names(&layout(&llama)), ["down_proj.weight"]);
        let mut own = layout(&[("tokens", &[50, 8]), ("up.weight", &[8, 8]), ("head.weight", &[50, 8])]);
        let (name, parameters) = (String::new(), 0..400);
        own.stages.push(StageSlice { name, kind: "embedding", parameters, stats: 0..0 });
        assert_eq!(names(&own), ["up.weight"]);
        own.tensors[1].frozen = true;
        assert!(names(&own).is_empty());
    }

    #[test]
    fn what_names_say_goes_before_all_but_shape() {
        let mut layout = layout(&[("emb.weight", &[9, 4]), ("up.weight", &[4, 4]), ("bias", &[4])]);
        for (tensor, hidden) in layout.tensors.iter_mut().zip([true, false, true]) {
            tensor.hidden = Some(hidden);
        }
        assert_eq!(names(&layout), ["emb.weight"]);
    }

    #[test]
    fn second_moments_are_kept_of_the_others_alone() {
        let layout = layout(&[("0.weight", &[4, 3]), ("0.bias", &[4]), ("1.weight", &[2, 4])]);
        let kept = kept(&layout);
        let places: Vec<(&str, usize)> = kept.iter().map(|it| (&*it.name, it.offset)).collect();
        let wanted =
            [("m.0.weight", 0), ("m.0.bias", 12), ("m.1.weight", 16), ("v.0.bias", 24), ("v.1.weight", 28)];
        assert_eq!(places, wanted);
    }

    #[test]
    fn learning_rates_follow_shapes_as_in_pytorch() {
        assert_eq!(AdjustLr::Original.factor([4, 16]), 1.0);
        assert_eq!(AdjustLr::Original.factor([16, 4]), 2.0);
        assert_eq!(AdjustLr::MatchRmsAdamW.factor([4, 16]), 0.8);
    }
}
