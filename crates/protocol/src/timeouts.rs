//! Every timeout of the control plane: one knob, what follows from it, and how long a silent supervisor is waited for.
//!
//! This file does not know what is timed; it keeps the numbers and their order in one place.

use dtrain_types::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The timeouts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// The knob: how long a member may be silent, a link away, or a process still alive after it was told to leave.
    pub detect: Duration,
    /// A sign of life is sent this often: eight in `detect`, so that one late or lost message means nothing.
    pub heartbeat: Duration,
    /// Rank 0 tells of its steps at most this often; what others wait for goes at once.
    pub pace: Duration,
    /// A timer that fires later than this says that its own process was stopped: everyone gets a new deadline.
    pub late: Duration,
    /// How long *form* may take: nothing is computed in it.
    pub form: Duration,
    /// The least time without a step that counts as a hang.
    pub progress: Duration,
    /// So long everyone's silence is forgiven after the supervisor itself stood still, where hosts have to call again first.
    pub back: Duration,
    /// A member or a node that hears nothing from its supervisor waits so long, with its state and its processes. A supervisor that
    /// only stood still finds them as they were.
    pub master: Duration,
    /// The last resort where nothing is learned yet: building, loading, the first steps, a validation, the last files.
    pub patience: Duration,
}

/// Why no timeouts can be derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeoutsError {
    /// The knob is outside of what makes sense.
    #[error("detect is {detect:?}, not between {:?} and {:?}", Timeouts::LEAST, Timeouts::MOST)]
    OutOfRange {
        /// The value given.
        detect: Duration,
    },
    /// A supervisor would be given up before it could know that it stood still.
    #[error("master_timeout is {master:?}, less than {least:?}: 2.5 x detect, or 2.5 s")]
    Impatient {
        /// The value given.
        master: Duration,
        /// The least.
        least: Duration,
    },
}

impl Timeouts {
    /// The least `detect`.
    pub const LEAST: Duration = Duration::from_millis(20);
    /// The greatest `detect`.
    pub const MOST: Duration = Duration::from_secs(600);

    /// What a host needs to call again, whatever `detect` is: the pauses between two calls, and a handshake.
    const CALL: Duration = Duration::from_millis(2_500);

    /// Derives all timeouts from `detect`; of `master` the least that makes sense, and a minute at least.
    ///
    /// *Errors*: [`TimeoutsError::OutOfRange`].
    pub fn derive(detect: Duration) -> Result<Self, TimeoutsError> {
        if detect < Self::LEAST || detect > Self::MOST {
            return Err(TimeoutsError::OutOfRange { detect });
        }
        let all = Self {
            detect,
            heartbeat: detect / 8,
            pace: detect / 50,
            late: detect / 2,
            form: detect * 10,
            progress: detect * 5,
            back: (detect * 5 / 2).max(Self::CALL),
            master: (detect * 5 / 2).max(Duration::from_secs(60)),
            patience: detect * 600,
        };
        let rising = [all.pace, all.heartbeat, all.late, all.detect, all.progress, all.form, all.patience];
        assert!(rising.is_sorted_by(|a, b| a < b), "timeouts out of order: {all}");
        assert!(all.heartbeat * 4 <= all.detect, "timeouts out of order: {all}");
        Ok(all)
    }

    /// The same with another time for which a silent supervisor is waited for.
    ///
    /// *Errors*: [`TimeoutsError::Impatient`].
    pub fn with_master(self, master: Duration) -> Result<Self, TimeoutsError> {
        let least = self.back;
        if master < least {
            Err(TimeoutsError::Impatient { master, least })
        } else {
            Ok(Self { master, ..self })
        }
    }
}

impl Timeouts {
    /// How often a rank tells of its steps. One rank's word commits them; the others tell with their signs of life.
    #[must_use]
    pub fn pace_of(&self, rank: Option<Rank>) -> Duration {
        if rank == Some(Rank(0)) { self.pace } else { self.heartbeat }
    }
}

impl fmt::Display for Timeouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "detect {:?}: heartbeat {:?}, pace {:?}, late {:?}, form {:?}, progress {:?}, back {:?}, master {:?}, patience {:?}",
            self.detect,
            self.heartbeat,
            self.pace,
            self.late,
            self.form,
            self.progress,
            self.back,
            self.master,
            self.patience
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_in_range_gives_timeouts_in_order() {
        for detect in [Timeouts::LEAST, Duration::from_millis(333), Duration::from_secs(1), Timeouts::MOST] {
            assert_eq!(Timeouts::derive(detect).map(|t| t.detect), Ok(detect));
        }
    }

    #[test]
    fn a_knob_out_of_range_is_refused_with_its_value() {
        for detect in [Duration::ZERO, Duration::from_millis(19), Duration::from_secs(601)] {
            assert_eq!(Timeouts::derive(detect), Err(TimeoutsError::OutOfRange { detect }));
        }
    }

    #[test]
    fn a_supervisor_is_given_at_least_the_time_that_it_gives_others() {
        let times = Timeouts::derive(Duration::from_secs(2)).expect("in range");
        let least = Duration::from_secs(5);
        assert_eq!(times.with_master(least).map(|times| times.master), Ok(least));
        let master = Duration::from_secs(4);
        assert_eq!(times.with_master(master), Err(TimeoutsError::Impatient { master, least }));
        for detect in [Timeouts::LEAST, Timeouts::MOST] {
            let times = Timeouts::derive(detect).expect("in range");
            assert_eq!(times.with_master(times.master), Ok(times), "what is derived is allowed");
        }
    }

    #[test]
    fn the_timeouts_are_printed_with_their_names() {
        let text = Timeouts::derive(Duration::from_secs(1)).map(|t| t.to_string()).unwrap_or_default();
        assert!(text.starts_with("detect 1s: heartbeat 125ms, pace 20ms, late 500ms"), "{text}");
    }
}
