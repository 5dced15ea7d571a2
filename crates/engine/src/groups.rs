//! Groups of parameters, by patterns of their names: how fast each is updated, and whether it decays.
//!
//! This file does not know what an update does with either.

use crate::error::EngineError;
use crate::layout::{Layout, Section};
use std::ops::Range;

/// How many kinds of parameters there may be that are updated otherwise.
pub const MOST_GROUPS: usize = 16;

/// How the parameters of a group are updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterGroup {
    /// What the learning rate is multiplied by.
    pub lr_factor: f64,
    /// Whether weight decay applies.
    pub decays: bool,
}

/// What patterns say of parameters. A `*` stands for any letters, also none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grouping {
    /// Patterns, each with what the learning rate is multiplied by; the first that fits counts.
    pub lr_factors: Vec<(String, f64)>,
    /// Patterns of what does not decay, whatever else is said.
    pub no_decay: Vec<String>,
    /// Patterns of what stays as it is, whatever else is said. Its gradient counts nowhere.
    pub frozen: Vec<String>,
    /// Patterns of what alone is trained; none leaves that to the others.
    pub trained: Vec<String>,
    /// Patterns of what Muon takes for matrices of hidden layers, if it has two dimensions; none leaves it to
    /// [`hidden_matrices`](crate::hidden_matrices).
    pub hidden: Vec<String>,
}

impl Grouping {
    /// Says of each parameter of a layout which group it belongs to.
    ///
    /// *Errors*: [`EngineError::Option`]: a pattern that fits no parameter, too many factors, or one that is no number of at least 0.
    pub fn apply(&self, layout: &mut Layout) -> Result<(), EngineError> {
        let parameters = || layout.tensors.iter().filter(|tensor| tensor.section == Section::Parameters);
        let factors = self.lr_factors.iter().map(|(pattern, _)| ("optimizer.lr_factors", pattern));
        let no_decay = self.no_decay.iter().map(|it| ("optimizer.no_decay", it));
        let frozen = self.frozen.iter().map(|it| ("model.freeze", it));
        let trained = self.trained.iter().map(|it| ("model.lora_also", it));
        let hidden = self.hidden.iter().map(|it| ("optimizer.matrices", it));
        for (key, pattern) in factors.chain(no_decay).chain(frozen).chain(trained).chain(hidden) {
            if !parameters().any(|tensor| fits(pattern, &tensor.name)) {
                let names: Vec<&str> = parameters().take(3).map(|tensor| &*tensor.name).collect();
                let reason =
                    format!("no parameter is called {pattern}; they are called {}, ...", names.join(", "));
                return Err(EngineError::Option { key, reason });
            }
        }
        for (pattern, factor) in &self.lr_factors {
            if !(factor.is_finite() && *factor >= 0.0) {
                let reason = match factor.is_nan() {
                    true => format!("{pattern} has no factor: write {pattern}=0.1"),
                    false => format!("{pattern} has {factor}, and a factor is a number of at least 0"),
                };
                return Err(EngineError::Option { key: "optimizer.lr_factors", reason });
            }
        }
        for tensor in layout.tensors.iter_mut().filter(|tensor| tensor.section == Section::Parameters) {
            let factor = self.lr_factors.iter().find(|(pattern, _)| fits(pattern, &tensor.name));
            tensor.lr_factor = factor.map_or(1.0, |(_, factor)| *factor);
            let named = || self.hidden.iter().any(|pattern| fits(pattern, &tensor.name));
            tensor.hidden = (!self.hidden.is_empty()).then(named);
            tensor.never_decays = self.no_decay.iter().any(|pattern| fits(pattern, &tensor.name));
            let is_left_out =
                !self.trained.is_empty() && !self.trained.iter().any(|pattern| fits(pattern, &tensor.name));
            if is_left_out || self.frozen.iter().any(|pattern| fits(pattern, &tensor.name)) {
                (tensor.frozen, tensor.never_decays, tensor.lr_factor) = (true, true, 0.0);
            }
        }
        let mut parameters = layout.tensors.iter().filter(|tensor| tensor.section == Section::Parameters);
        if !(self.frozen.is_empty() && self.trained.is_empty()) && parameters.all(|tensor| tensor.frozen) {
            let reason = "leaves nothing to train".into();
            return Err(EngineError::Option { key: "model.freeze", reason });
        }
        let groups = Runs::of(layout, |_| true).groups.len();
        if groups > MOST_GROUPS {
            let reason = format!("make {groups} groups of parameters, and there can be {MOST_GROUPS}");
            return Err(EngineError::Option { key: "optimizer.lr_factors", reason });
        }
        Ok(())
    }
}

/// Whether a name is one of those that a pattern stands for.
#[must_use]
pub fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|skipped| rest.is_char_boundary(skipped) && fits(after, &rest[skipped..]))
        }),
    }
}

/// The parameters as runs, each with the number of its group.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    /// They rise and cover all.
    pub(crate) runs: Vec<(Range<usize>, usize)>,
    pub(crate) groups: Vec<ParameterGroup>,
}

impl Runs {
    /// The runs, which rise and cover all parameters, each with its group.
    pub fn iter(&self) -> impl Iterator<Item = (Range<usize>, ParameterGroup)> {
        self.runs.iter().map(|(run, group)| (run.clone(), self.groups[*group]))
    }

    /// The part of them in `elements`, counted from their start.
    pub(crate) fn within(&self, elements: &Range<usize>) -> Self {
        let met = |(run, group): &(Range<usize>, usize)| {
            let both = run.start.max(elements.start)..run.end.min(elements.end);
            (!both.is_empty()).then(|| (both.start - elements.start..both.end - elements.start, *group))
        };
        Self { runs: self.runs.iter().filter_map(met).collect(), groups: self.groups.clone() }
    }

    /// Those of a layout, where weight decay applies to these tensors.
    pub(crate) fn of(layout: &Layout, decays: impl Fn(&crate::layout::Tensor) -> bool) -> Self {
        let mut all = Self { runs: Vec::new(), groups: Vec::new() };
        for tensor in layout.tensors.iter().filter(|tensor| tensor.section == Section::Parameters) {
            let group = ParameterGroup {
                lr_factor: tensor.lr_factor,
                decays: decays(tensor) && !tensor.never_decays,
            };
            let known = all.groups.iter().position(|known| *known == group);
            let number = known.unwrap_or_else(|| {
                all.groups.push(group);
                all.groups.len() - 1
            });
            match all.runs.last_mut() {
                Some((run, last)) if *last == number => run.end = tensor.range().end,
                _ => all.runs.push((tensor.range(), number)),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Tensor;
    use crate::param_layout::Init;

    fn layout() -> Layout {
        let names = ["body.0.weight", "body.0.bias", "body.1.weight", "head.weight", "head.bias"];
        let mut layout = Layout { parameters: 10, ..Layout::default() };
        for (at, name) in names.into_iter().enumerate() {
            let shape = if name.ends_with("bias") { vec![2] } else { vec![1, 2] };
            layout.tensors.push(Tensor::new(name, &shape, Section::Parameters, 2 * at, Init::Constant(0.0)));
        }
        layout
    }

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, wanted) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("*", "", true),
            ("*.bias", "x.y.bias", true),
            ("*.bias", "x.bias.y", false),
            ("x*z", "xyz", true),
            ("x*y*z", "x1y2y3z", true),
            ("ä*", "äö", true),
            ("*é", "ßé", true),
        ] {
            assert_eq!(fits(pattern, name), wanted, "{pattern} {name}");
        }
    }

    #[test]
    fn parameters_side_by_side_of_one_group_are_one_run() {
        let mut layout = layout();
        let matrices = |tensor: &Tensor| tensor.decays;
        assert_eq!(Runs::of(&layout, |_| true).runs, [(0..10, 0)]);
        assert_eq!(Runs::of(&layout, matrices).runs, [(0..2, 0), (2..4, 1), (4..8, 0), (8..10, 1)]);
        let grouping = Grouping {
            lr_factors: vec![("body.1*".into(), 0.5), ("body.*".into(), 0.1)],
            no_decay: vec!["*.bias".into()],
            ..Grouping::default()
        };
        grouping.apply(&mut layout).expect("all of them fit something");
        let runs = Runs::of(&layout, |_| true);
        assert_eq!(runs.runs, [(0..2, 0), (2..4, 1), (4..6, 2), (6..8, 3), (8..10, 4)]);
        let factors: Vec<(f64, bool)> =
            runs.groups.iter().map(|group| (group.lr_factor, group.decays)).collect();
        assert_eq!(factors, [(0.1, true), (0.1, false), (0.5, true), (1.0, true), (1.0, false)]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_key_to_change() {
        let refused =
            |grouping: Grouping| grouping.apply(&mut layout()).expect_err("it makes no sense").to_string();
        let factors = |lr_factors: Vec<(String, f64)>| Grouping { lr_factors, ..Grouping::default() };
        let none = refused(factors(vec![("tail*".into(), 2.0)]));
        assert!(none.starts_with(
            "optimizer.lr_factors: no parameter is called tail*; they are called body.0.weight"
        ));
        assert!(refused(factors(vec![("*".into(), -1.0)])).contains("a number of at least 0"));
        let no_decay = vec!["nothing".into()];
        assert!(refused(Grouping { no_decay, ..Grouping::default() }).starts_with("optimizer.no_decay"));
    }
}
