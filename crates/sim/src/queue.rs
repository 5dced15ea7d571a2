//! What is to happen, in the order of virtual time; what happens at the same moment is ordered by the seed.
//!
//! This file does not know what an event means.

use crate::random::Chance;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Input that is already there is handled before a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Something arrives.
    Input,
    /// Something comes due.
    Timer,
}

type Key = (u64, Class, u32, u64, usize);

/// The queue of events.
#[derive(Debug)]
pub struct Queue<E> {
    keys: BinaryHeap<Reverse<Key>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
    count: u64,
    chance: Chance,
}

impl<E> Queue<E> {
    /// An empty queue, whose ties are broken by `chance`.
    #[must_use]
    pub fn new(chance: Chance) -> Self {
        Self { keys: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), count: 0, chance }
    }

    /// Adds an event. *Units*: nanoseconds.
    pub fn push(&mut self, at: u64, class: Class, event: E) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.count += 1;
        let tie = self.chance.draw() as u32;
        self.keys.push(Reverse((at, class, tie, self.count, place)));
    }

    /// Drops every event that is not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&E) -> bool) {
        let (events, free) = (&mut self.events, &mut self.free);
        self.keys.retain(|Reverse((.., place))| {
            let kept = events[*place].as_ref().is_some_and(&keep);
            if !kept {
                events[*place] = None;
                free.push(*place);
            }
            kept
        });
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(u64, Class, E)> {
        let Reverse((at, class, _, _, place)) = self.keys.pop()?;
        self.free.push(place);
        Some((at, class, self.events[place].take().expect("a key has an event")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::Seed;

    #[test]
    fn events_come_in_the_order_of_time_and_inputs_before_timers() {
        let mut queue = Queue::new(Chance::new(Seed(1), 1));
        queue.push(5, Class::Timer, "timer");
        queue.push(9, Class::Input, "late");
        queue.push(5, Class::Input, "input");
        queue.push(1, Class::Timer, "early");
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, _, event)| event).collect();
        assert_eq!(order, ["early", "input", "timer", "late"]);
    }
}
