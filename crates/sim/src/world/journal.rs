//! The supervisor's journal: what it enters is on the disk a little later, in order; what is not there yet dies with its process.

use super::event::{Entry, Event};
use super::{EndsBy, World};
use crate::clock::{MICRO, MILLI};
use crate::fact::Fact;
use crate::sabotage::Sabotage;
use dtrain_protocol::{Input, Judgement, SupervisorEffect};
use dtrain_types::Instant;

impl World {
    pub(super) fn enter_journal(&mut self, entry: Entry) {
        // A real one gathers steps for as long as a rank needs for many: behind a slow disk members hold records for some time.
        let slow = self.disk_slow > 1 || self.breaks(Sabotage::EarlyRecord);
        let most = match entry {
            Entry::Step(_) if !slow => 500 * MICRO,
            // Ranks are not ready sooner than a disk that is well.
            Entry::Ranges(_) if self.breaks(Sabotage::EarlyRanges) => 400 * MILLI,
            _ => 20 * MILLI,
        };
        let after = self.chance.between(50 * MICRO, most);
        self.journal_at = self.journal_at.max(self.now + after);
        self.push(self.journal_at - self.now, Event::Written);
        self.journal.push_back(entry);
    }

    /// The oldest entry is written.
    pub(super) fn write_down(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let Some(entry) = self.journal.pop_front() else { return };
        self.note_written(&entry);
        let input = match entry {
            Entry::Ranges(generation) => Input::Ranges(generation),
            Entry::Step(record) => Input::Recorded(record.step),
            Entry::Validation(validation) => {
                let judgement = match self.on_disk.enough {
                    Some(_) => Judgement::Enough,
                    None => Judgement::GoOn,
                };
                Input::Judged(validation.step, judgement)
            }
            Entry::Ending(_) => Input::Ending,
        };
        self.supervisor.feed(now, &input, effects);
    }

    /// What the disk holds then.
    pub(super) fn note_written(&mut self, entry: &Entry) {
        match entry {
            Entry::Ranges(generation) => drop(self.ranges_on_disk.insert(*generation)),
            Entry::Step(record) => {
                if !self.ranges_known.contains(&record.generation) {
                    self.fact(&Fact::Unwritable(record));
                }
                self.fact(&Fact::Committed(record));
                self.on_disk.recorded = record.step;
                let late = self.asked.is_some_and(|asked| record.step.0 > asked.0 + super::BOUNDARY);
                if late && self.network.is_sound() {
                    self.fact(&Fact::NeverEnded("a boundary that was asked for does not come"));
                }
            }
            Entry::Validation(validation) => {
                self.fact(&Fact::Validated(validation));
                self.on_disk.validated = validation.step;
                let last = validation.step.0 >= self.settings.steps;
                let enough = last && self.settings.ends == EndsBy::Judgement;
                self.on_disk.enough = enough.then_some(validation.step);
            }
            Entry::Ending(ending) => {
                self.fact(&Fact::EndingWritten(ending));
                self.on_disk.ending = Some(*ending);
            }
        }
    }
}
