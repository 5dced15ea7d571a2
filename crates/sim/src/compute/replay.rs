//! A pass over windows in virtual time: it is tried again and again, each time with the answer of one exchange more.
//!
//! A pass waits inside of its exchanges, and nothing can wait here. So an exchange that has not come yet *breaks off*, as if a peer had died
//! in it: the pass goes on to its end with whatever is there, and says that it broke. Then the exchange is made, in as much time as it takes, and
//! the pass is tried again from where it began, with its answer. The code cannot tell this from the runtime: what a broken exchange leaves
//! behind counts for nothing there, either.

use dtrain_collective::{CollectiveError, Narrow, Op, Take};
use dtrain_rounds::Exchange;

/// Answers from exchanges that were made, and breaks off at the first one that was not.
pub(super) struct Replay<'a> {
    /// What slot 0 was after each exchange that was made.
    heard: &'a [Vec<f32>],
    asked: usize,
    slot: Vec<f32>,
    narrow: Narrow,
    wanted: Option<Wanted>,
}

/// An exchange that is to be made.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Where the parts of the ranks begin in a slot.
    pub cuts: Vec<usize>,
    /// What ranks take.
    pub take: Take,
    /// What they need and have.
    pub narrow: Narrow,
    /// What slot 0 is to be before.
    pub slot: Vec<f32>,
}

impl<'a> Replay<'a> {
    /// Over slots of so many floats, which are no numbers where nobody has written.
    pub fn new(heard: &'a [Vec<f32>], len: usize) -> Self {
        let slot = vec![f32::NAN; len];
        Self { heard, asked: 0, slot, narrow: Narrow::default(), wanted: None }
    }

    /// The exchange at which it broke off.
    pub fn wanted(self) -> Option<Wanted> {
        self.wanted
    }
}

impl Exchange for Replay<'_> {
    fn slot(&mut self) -> &mut [f32] {
        assert!(self.wanted.is_none(), "no slot is lent once an exchange broke off");
        &mut self.slot
    }

    fn narrow(&mut self, narrow: &Narrow) {
        self.narrow = narrow.clone();
    }

    fn gather(&mut self, op: &Op<'_>) -> Result<(), CollectiveError> {
        assert!(self.wanted.is_none(), "nothing is exchanged once an exchange broke off");
        if let Some(slot) = self.heard.get(self.asked) {
            self.slot.copy_from_slice(slot);
            self.asked += 1;
            return Ok(());
        }
        let Op::AllGather { cuts: Some(cuts), take } = op else { panic!("no exchange of windows: {op:?}") };
        let slot = self.slot.clone();
        self.wanted = Some(Wanted { cuts: cuts.to_vec(), take: *take, narrow: self.narrow.clone(), slot });
        Err(CollectiveError::Aborted { reason: "it has not come yet".to_owned() })
    }
}
