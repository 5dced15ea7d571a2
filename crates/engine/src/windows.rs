//! A gradient cut into windows, one behind the other from its end: each is final as a whole before the next one is begun.
//!
//! Who has a gradient window by window needs memory for the longest alone, and for those that are begun before their turn. This file does not know
//! what becomes of a window.

use crate::layout::Layout;
use std::ops::Range;

/// Fewer elements make no window, where there is something in front of them: to send them takes as long as to send so many.
const LEAST: usize = 4096;

/// The windows of a gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    all: Vec<Window>,
    parameters: usize,
    itinerary: Itinerary,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its elements.
    pub elements: Range<usize>,
    /// When its first element is written.
    pub begun: Begun,
    /// Where it lies in memory for all of them ([`Windows::memory`]).
    pub place: Range<usize>,
}

/// When a window is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// When the one behind it is final.
    InTurn,
    /// Before that: a stage far behind it writes there too, to which one of its parameters is tied.
    Early,
}

impl Windows {
    /// Those of a gradient of stages that lie so, of which some use these parameters of earlier ones: first the sums of the statistics, then stage
    /// by stage what makes a window. A pass asks for its parts as the itinerary says.
    ///
    /// *Order*: a pure function of its arguments.
    #[must_use]
    pub fn of(layout: &Layout, tied: &[Range<usize>], itinerary: Itinerary) -> Self {
        Self::of_at_least(LEAST, layout, tied, itinerary)
    }

    /// The same, where fewer than so many elements make no window: for models that are tiny on purpose.
    pub(crate) fn of_at_least(
        least: usize,
        layout: &Layout,
        tied: &[Range<usize>],
        itinerary: Itinerary,
    ) -> Self {
        let mut all = Vec::new();
        let mut push = |elements: Range<usize>| {
            let meets = |tie: &Range<usize>| tie.start < elements.end && elements.start < tie.end;
            let begun = if tied.iter().any(meets) { Begun::Early } else { Begun::InTurn };
            if !elements.is_empty() {
                all.push(Window { place: 0..elements.len(), elements, begun });
            }
        };
        push(layout.parameters..layout.gradient_len());
        let mut end = layout.parameters;
        for stage in layout.stages.iter().rev().filter(|stage| !stage.parameters.is_empty()) {
            let start = stage.parameters.start;
            if end - start >= least && start > 0 {
                push(start..end);
                end = start;
            }
        }
        push(0..end);
        let in_turn = all.iter().filter(|window| window.begun == Begun::InTurn);
        let mut next = in_turn.map(|window| window.elements.len()).max().unwrap_or(0);
        for window in all.iter_mut().filter(|window| window.begun == Begun::Early) {
            window.place = next..next + window.elements.len();
            next = window.place.end;
        }
        Self { all, parameters: layout.parameters, itinerary: itinerary.completed(layout) }
    }

    /// What a pass asks for.
    #[must_use]
    pub fn itinerary(&self) -> &Itinerary {
        &self.itinerary
    }

    /// They, the last elements first.
    #[must_use]
    pub fn all(&self) -> &[Window] {
        &self.all
    }

    /// Where elements lie in memory for all windows, of which those before this one are final. *Panics* if they are not neighbours in one window.
    #[must_use]
    pub fn place_of(&self, from: usize, elements: &Range<usize>) -> Range<usize> {
        if elements.is_empty() {
            return 0..0;
        }
        let window = &self.all[self.window_of(from, elements)];
        let at = window.place.start + elements.start - window.elements.start;
        at..at + elements.len()
    }

    /// The window in which elements lie, of which those before this one are final. *Panics* if they are not neighbours in one window.
    #[must_use]
    pub fn window_of(&self, from: usize, elements: &Range<usize>) -> usize {
        let inside = |it: &Window| it.elements.start <= elements.start && elements.end <= it.elements.end;
        from + self.all[from..].iter().position(inside).expect("a part of a gradient lies in a window")
    }

    /// Elements of the longest of those that are begun in turn.
    #[must_use]
    pub fn longest(&self) -> usize {
        let in_turn = self.all.iter().filter(|window| window.begun == Begun::InTurn);
        in_turn.map(|window| window.elements.len()).max().unwrap_or(0)
    }

    /// Elements of the longest of all that are of parameters.
    #[must_use]
    pub fn longest_of_parameters(&self) -> usize {
        let starts_with_them = self.all.iter().filter(|window| window.elements.start < self.parameters);
        starts_with_them.map(|window| window.elements.len()).max().unwrap_or(0)
    }

    /// Elements of memory for them, piece by piece: for the longest, and for each that is begun early.
    pub fn pieces(&self) -> impl Iterator<Item = usize> + '_ {
        let early = self.all.iter().filter(|window| window.begun == Begun::Early);
        std::iter::once(self.longest()).chain(early.map(|window| window.elements.len()))
    }

    /// Elements of all these pieces.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.pieces().sum()
    }
}

/// What a pass over a model of stages asks for, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Itinerary {
    /// The parameters that the forward pass reads, stage by stage.
    pub forward: Vec<Range<usize>>,
    /// What the backward pass does behind it.
    pub backward: Vec<Call>,
}

impl Itinerary {
    /// Parameters of the stage with most of them.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.forward.iter().map(Range::len).max().unwrap_or(0)
    }

    /// The same with what is in front of the last stage that the backward pass visits.
    fn completed(mut self, layout: &Layout) -> Self {
        let settled = |call: &Call| if let Call::Settles(from) = call { Some(*from) } else { None };
        let mut open = self.backward.iter().filter_map(settled).min().unwrap_or(layout.parameters);
        for stage in layout.stages.iter().rev().filter(|stage| !stage.parameters.is_empty()) {
            if stage.parameters.start < open {
                open = stage.parameters.start;
                self.backward.push(Call::Settles(open));
            }
        }
        self
    }
}

/// Something that a backward pass does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// It reads these parameters.
    Reads(Range<usize>),
    /// Its gradient is final from this element on.
    Settles(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::StageSlice;

    fn layout(lengths: &[usize], stats: usize) -> Layout {
        let mut layout = Layout { stats, ..Layout::default() };
        for len in lengths {
            let parameters = layout.parameters..layout.parameters + len;
            layout.parameters = parameters.end;
            layout.stages.push(StageSlice { name: String::new(), kind: "", parameters, stats: 0..0 });
        }
        layout
    }

    fn elements(windows: &Windows) -> Vec<Range<usize>> {
        windows.all().iter().map(|window| window.elements.clone()).collect()
    }

    #[test]
    fn windows_end_where_stages_do_and_small_stages_are_one() {
        let windows = Windows::of(&layout(&[5000, 0, 6000, 10, 4090, 0, 5000], 7), &[], Itinerary::default());
        let wanted = [20100..20107, 15100..20100, 11000..15100, 5000..11000, 0..5000];
        assert_eq!(elements(&windows), wanted);
        assert_eq!((windows.longest(), windows.memory()), (6000, 6000));
        let small = elements(&Windows::of(&layout(&[10, 20], 0), &[], Itinerary::default()));
        assert_eq!(small, std::iter::once(0..30).collect::<Vec<_>>());
        assert!(elements(&Windows::of(&layout(&[], 0), &[], Itinerary::default())).is_empty());
    }

    #[test]
    fn a_window_of_a_parameter_that_a_later_stage_is_tied_to_is_begun_early() {
        let windows = Windows::of(
            &layout(&[9000, 5000, 5000], 0),
            std::slice::from_ref(&(0..8000)),
            Itinerary::default(),
        );
        let begun: Vec<Begun> = windows.all().iter().map(|window| window.begun).collect();
        assert_eq!(begun, [Begun::InTurn, Begun::InTurn, Begun::Early]);
        assert_eq!((windows.longest(), windows.memory()), (5000, 14000));
        assert_eq!(
            (windows.place_of(0, &(100..8000)), windows.place_of(1, &(9001..9002))),
            (5100..13000, 1..2)
        );
        assert_eq!(windows.place_of(2, &(3..3)), 0..0);
    }
}
