//! Which data plane connects the ranks of one host.
//!
//! Exact sums go through shared memory, between processes and between threads alike. Ring sums do too between
//! processes; between threads they run as the classic ring over in-process queues.

use dtrain_collective::{Backend, CollectiveError, Geometry, HostBackend, Membership, Mode};
use dtrain_runtime::Fabric;
use dtrain_transport::{ArenaFile, Mapping, MemoryTransport, ShmBackend, memory_mesh};
use dtrain_types::{MemberId, WorldSize};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// The way to the other ranks of this host.
#[derive(Clone)]
pub struct HostFabric {
    way: Way,
}

#[derive(Clone)]
enum Way {
    Shared(Arc<Mapping>),
    Queues { ends: Arc<Mutex<Vec<Option<MemoryTransport>>>>, member: usize },
}

impl HostFabric {
    /// Through an arena that the parent made.
    ///
    /// *Errors*: it is no arena, or cannot be mapped.
    pub fn from_arena(arena: OwnedFd) -> Result<Self, String> {
        let file = ArenaFile::from_fd(arena).map_err(|error| error.to_string())?;
        let mapping = file.map().map_err(|error| error.to_string())?;
        Ok(Self { way: Way::Shared(mapping) })
    }

    /// Between the threads of this process.
    ///
    /// *Errors*: memory that cannot be had.
    pub fn between_threads(world: WorldSize, geometry: Geometry, mode: Mode) -> Result<Self, String> {
        match mode {
            Mode::Exact => Self::from_arena(new_arena(world, geometry)?),
            Mode::Ring => {
                let ends = memory_mesh(world.0 as usize).into_iter().map(Some).collect();
                Ok(Self { way: Way::Queues { ends: Arc::new(Mutex::new(ends)), member: 0 } })
            }
        }
    }

    /// The end that belongs to a member.
    #[must_use]
    pub fn for_member(&self, member: MemberId) -> Self {
        match &self.way {
            Way::Shared(_) => self.clone(),
            Way::Queues { ends, .. } => {
                Self { way: Way::Queues { ends: Arc::clone(ends), member: member.0 as usize } }
            }
        }
    }
}

/// The memory that the ranks of a host share.
///
/// *Errors*: there is not enough.
pub fn new_arena(world: WorldSize, geometry: Geometry) -> Result<OwnedFd, String> {
    ArenaFile::create(world, geometry).map(ArenaFile::into_fd).map_err(|error| error.to_string())
}

impl Fabric for HostFabric {
    fn connect(
        &mut self,
        membership: &Membership,
        geometry: Geometry,
        mode: Mode,
        counts: &[u32],
    ) -> Result<Box<dyn Backend>, String> {
        match &self.way {
            Way::Shared(mapping) => {
                let backend = ShmBackend::new(Arc::clone(mapping), membership.clone(), mode, counts);
                Ok(Box::new(backend.map_err(|error| error.to_string())?))
            }
            Way::Queues { ends, member } => {
                let end = ends.lock().expect("no holder panics")[*member].take();
                let end = end.ok_or("the queues of this process serve one generation")?;
                let backend = HostBackend::new(end, membership.clone(), mode, geometry, counts);
                Ok(Box::new(backend.map_err(|error: CollectiveError| error.to_string())?))
            }
        }
    }
}
