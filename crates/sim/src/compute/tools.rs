//! What a compute thread works with.

use crate::compute::{Ask, News};
use crate::memory::HostMemory;
use crate::{Engine, SimDisk};
use dtrain_types::Instant;

/// What a compute thread works with.
pub struct Tools<'a> {
    /// The engine of all ranks.
    pub engine: &'a mut Engine,
    /// The run folder.
    pub disk: &'a SimDisk,
    /// The memory of its host, where ranks meet there.
    pub memory: Option<&'a mut HostMemory>,
    /// The time of its process.
    pub now: Instant,
    /// What it asks for.
    pub asks: &'a mut Vec<Ask>,
}

impl Tools<'_> {
    pub fn tell(&mut self, news: News) {
        self.asks.push(Ask::Tell(news));
    }
}
