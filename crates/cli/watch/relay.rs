//! An observer that also hears what trackers have to say, on the thread that may show it.

use dtrain_protocol::Event;
use dtrain_runtime::{Observer, StepSeen};
use dtrain_telemetry::EpochMetrics;
use dtrain_telemetry::track::News;
use dtrain_types::MemberId;

/// Passes everything on. See the file's comment.
pub(super) struct Relay {
    pub(super) inner: Box<dyn Observer>,
    pub(super) news: Vec<News>,
}

impl Relay {
    fn hear(&mut self) {
        for news in &self.news {
            news.take().iter().for_each(|news| self.inner.warning(news));
        }
    }
}

impl Observer for Relay {
    fn step(&mut self, seen: &StepSeen) {
        self.inner.step(seen);
        self.hear();
    }

    fn epoch(&mut self, seen: &EpochMetrics) {
        self.inner.epoch(seen);
    }

    fn validation(&mut self, seen: &EpochMetrics) {
        self.inner.validation(seen);
    }

    fn event(&mut self, event: &Event) {
        self.inner.event(event);
    }

    fn rank_output(&mut self, member: MemberId, line: &str) {
        self.inner.rank_output(member, line);
    }

    fn warning(&mut self, text: &str) {
        self.inner.warning(text);
    }
}
