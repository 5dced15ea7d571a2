//! What a supervisor that takes a run over is told of the one that died.

use super::Session;
use dtrain_protocol::{StopFlag, TakenOver};
use dtrain_runtime::Found;
use dtrain_telemetry::ledger::LedgerWriter;
use dtrain_types::Step;

impl Session {
    /// What the supervisor that died had written down.
    pub(super) fn taken_over(&self, found: &Found, ledger: &LedgerWriter) -> TakenOver {
        let start = self.resume.map_or(Step(0), |id| id.step);
        // Each file goes on behind its own last line; what is in all of them need not be told again.
        let recorded = ledger.reached().min(found.events).min(found.metrics).max(start);
        let schedule = self.plan.schedule();
        let newest = found.newest_validation(&schedule, recorded).map(|(step, _)| step);
        let validated = newest.unwrap_or_default();
        let patience = self.plan.metrics().ok().and_then(|metrics| metrics.patience);
        let is_over = |step: &Step| {
            patience.as_ref().is_some_and(|patience| {
                let standings = found.standings(patience, self.standing().as_ref(), start, &schedule);
                standings.get(step).is_some_and(|standing| patience.is_over(standing))
            })
        };
        let stopped = self.resume.filter(|_| self.has_stopped()).map(|id| id.step);
        let enough = newest.filter(is_over).or(stopped);
        // Its steps are in the books as well, or it is not believed.
        let written = found.ending.filter(|ending| ending.step <= recorded);
        let ending = written.or_else(|| self.ending_of(self.resume.filter(|id| self.is_complete_with(*id))?));
        let booked = match patience {
            // A validation that is in no file might have ended the run: the steps before it are to be made again.
            Some(_) if self.validates_between(recorded, ledger.reached()) => recorded,
            _ => ledger.reached(),
        };
        let (nodes, vacant) = (found.hosts.clone(), self.succeeds());
        TakenOver { recorded, booked, validated, enough, ending, nodes, vacant }
    }

    /// Whether a step behind this one and up to that one is validated.
    fn validates_between(&self, behind: Step, upto: Step) -> bool {
        let schedule = self.plan.schedule();
        (behind.0 + 1..=upto.0).any(|step| schedule.after(Step(step), StopFlag::default()).validate)
    }
}
