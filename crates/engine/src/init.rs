//! How a model starts: random numbers by distribution.
//!
//! The numbers of a tensor depend on the seed and on the tensor's number alone.

use crate::flat::Flat;
use crate::layout::{Layout, Section, Tensor};
use crate::param_layout::Init;
use crate::state::State;
use dtrain_types::numbers::normal_quantile;
use dtrain_types::{Key, MicroBatch, Seed, Site, Step, unit_of};
use std::ops::Range;

impl Layout {
    /// What these parameters begin with: a part of what [`Layout::initialise`] writes.
    pub fn first_parameters(&self, seed: Seed, elements: Range<usize>, to: &mut [f32]) {
        let inside = |tensor: &Tensor| tensor.section == Section::Parameters && !tensor.range().is_empty();
        for tensor in self.tensors.iter().filter(|tensor| inside(tensor)) {
            let range = tensor.range();
            let both = range.start.max(elements.start)..range.end.min(elements.end);
            if both.start < both.end {
                let to = &mut to[both.start - elements.start..both.end - elements.start];
                fill(tensor.init, key_of(seed, tensor), both.start - range.start, to);
            }
        }
    }

    /// What the parameters that lie apart begin with, as their [`Init`] says, but zeros where their names are not wanted. *Order*: as
    /// [`Layout::initialise`].
    #[must_use]
    pub fn first_frozen(&self, seed: Seed, wanted: impl Fn(&str) -> bool) -> Flat {
        let mut first = Flat::zeros(self.frozen_len());
        for tensor in self.frozen.iter().filter(|tensor| wanted(&tensor.name)) {
            fill(tensor.init, key_of(seed, tensor), 0, &mut first[tensor.range()]);
        }
        first
    }

    /// Fills parameters and running statistics, if the state has them, as their [`Init`] says, and zeros the optimizer's buffers. A moving average begins with the parameters.
    ///
    /// *Order*: a tensor of number `i` draws from the stream `(seed, step 0, micro-batch 0, site i)`.
    pub fn initialise(&self, seed: Seed, state: &mut State) {
        let there = Section::ALL.map(|section| !state.section(section).is_empty());
        let is_there = |tensor: &Tensor| there[tensor.section as usize];
        for tensor in self.tensors.iter().filter(|tensor| is_there(tensor)) {
            fill(
                tensor.init,
                key_of(seed, tensor),
                0,
                &mut state.section_mut(tensor.section)[tensor.range()],
            );
        }
        for section in [Section::First, Section::Second] {
            state.section_mut(section).fill(0.0);
        }
        state.begin_average();
        state.applied = Step(0);
    }
}

/// The stream of a tensor.
fn key_of(seed: Seed, tensor: &Tensor) -> Key {
    let site = Site(u32::try_from(tensor.number).expect("a model has fewer than 2^32 tensors"));
    Key::new(seed, Step(0), MicroBatch(0), site)
}

/// Fills a part of a tensor, from this element of it on.
fn fill(init: Init, key: Key, from: usize, values: &mut [f32]) {
    let draw = |to: &mut [f32], number: &dyn Fn(u32) -> f32| {
        let (before, rest) = to.split_at_mut((from.next_multiple_of(4) - from).min(to.len()));
        let four = |index: usize, skip: usize, to: &mut [f32]| {
            let block = key.block(u32::try_from(index).expect("a tensor has fewer than 2^34 elements"));
            to.iter_mut().zip(&block[skip..]).for_each(|(x, word)| *x = number(*word));
        };
        if !before.is_empty() {
            four(from / 4, from % 4, before);
        }
        rest.chunks_mut(4).zip(from.div_ceil(4)..).for_each(|(to, index)| four(index, 0, to));
    };
    match init {
        Init::Constant(value) => values.fill(value),
        Init::First(value) => {
            values.fill(0.0);
            values[..usize::from(from == 0)].fill(value);
        }
        Init::Uniform(bound) => draw(values, &|word| (unit_of(word) * 2.0 - 1.0) * bound),
        Init::Normal(deviation) => draw(values, &|word| {
            // The middle of one of 2^32 equal parts of (0, 1): never 0, never 1.
            let p = (f64::from(word) + 0.5) / 4_294_967_296.0;
            (normal_quantile(p) * f64::from(deviation)) as f32
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateShape;

    fn tensor(name: &str, shape: &[usize], section: Section, offset: usize, init: Init) -> Tensor {
        Tensor::new(name, shape, section, offset, init)
    }

    fn layout() -> Layout {
        let mut layout = Layout {
            tensors: vec![
                tensor("fc.weight", &[50, 100], Section::Parameters, 0, Init::Uniform(0.5)),
                tensor("wte.weight", &[70, 100], Section::Parameters, 5000, Init::Normal(0.02)),
                tensor("fc.bias", &[2], Section::Parameters, 12_000, Init::Constant(3.0)),
                tensor("norm.running_var", &[2], Section::Stats, 0, Init::Constant(1.0)),
                tensor("count", &[3], Section::Stats, 2, Init::First(8.0)),
            ],
            parameters: 12_002,
            stats: 5,
            ..Layout::default()
        };
        layout.tensors.iter_mut().enumerate().for_each(|(number, tensor)| tensor.number = number);
        layout
    }

    fn state() -> State {
        State::zeros(StateShape { parameters: 12_002, stats: 5, moments: 1, kept: 0, averages: true })
    }

    fn moments(values: &[f32]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        (mean, (values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n).sqrt())
    }

    #[test]
    fn each_distribution_has_its_mean_its_deviation_and_its_bounds() {
        let mut state = state();
        state.section_mut(Section::First).fill(7.0);
        state.section_mut(Section::Stats).fill(7.0);
        layout().initialise(Seed(3), &mut state);
        let p = state.section(Section::Parameters);
        let (mean, deviation) = moments(&p[..5000]);
        assert!(mean.abs() < 0.02 && (deviation - 0.5 / 3f64.sqrt()).abs() < 0.01, "{mean} {deviation}");
        assert!(p[..5000].iter().all(|x| x.abs() <= 0.5));
        let (mean, deviation) = moments(&p[5000..12_000]);
        assert!(mean.abs() < 0.001 && (deviation - 0.02).abs() < 0.0005, "{mean} {deviation}");
        assert!(p[5000..12_000].iter().any(|x| x.abs() > 0.06), "a normal distribution has tails");
        assert_eq!(p[12_000..], [3.0, 3.0]);
        assert_eq!(state.section(Section::Stats), [1.0, 1.0, 8.0, 0.0, 0.0]);
        assert!(state.section(Section::First).iter().all(|x| *x == 0.0));
        assert_eq!(state.section(Section::Average), state.section(Section::Parameters));
    }

    #[test]
    fn another_seed_and_another_tensor_start_elsewhere() {
        let start = |seed| {
            let mut state = state();
            layout().initialise(Seed(seed), &mut state);
            state
        };
        assert_eq!(start(1).digest(), start(1).digest());
        assert_ne!(start(1).digest(), start(2).digest());
    }

    #[test]
    fn a_part_of_the_first_parameters_is_that_part_of_all_of_them() {
        let layout = layout();
        let mut state = State::zeros(StateShape { parameters: 12_002, stats: 5, ..StateShape::default() });
        layout.initialise(Seed(9), &mut state);
        for elements in [0..12_002, 3..4, 4_998..5_003, 5_001..12_001, 7..7, 12_001..12_002, 4..4_093] {
            let mut part = vec![f32::NAN; elements.len()];
            layout.first_parameters(Seed(9), elements.clone(), &mut part);
            assert_eq!(part, state.section(Section::Parameters)[elements]);
        }
    }
}
