//! Which data plane connects the ranks of a run: those of one host, and hosts with each other.
//!
//! Exact sums go through shared memory, between processes and between threads alike. Ring sums do too between
//! processes; between threads they run as the classic ring over in-process queues. Between hosts both go over encrypted
//! links from the first rank of each host to that of every other.

use crate::hosts::identity;
use crate::mesh_address::{MeshAddress, PortRange};
use dtrain_collective::{Backend, CollectiveError, Geometry, HostBackend, Reduce};
use dtrain_engine::{StateShape, shared_shape};
use dtrain_protocol::Participant;
use dtrain_runtime::{Fabric, FabricError, Plane};
use dtrain_transport::quic::{
    Endpoint, IoThread, LinkError, MESH_SEGMENT, MeshError, MeshPlan, MeshPort, QuicMesh, Tuning,
};
use dtrain_transport::{
    ArenaFile, HierarchicalBackend, HierarchicalSetup, Mapping, MemoryTransport, ShmBackend, ShmState,
    Topology, memory_mesh,
};
use dtrain_types::{MemberId, Rank, SharedShape, Wire, WorldSize};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// How the ranks of this host reach each other.
#[derive(Clone)]
pub struct HostFabric {
    route: Route,
}

#[derive(Clone)]
enum Route {
    Shared(Arc<Mapping>),
    Queues { ends: Arc<Mutex<Vec<Option<MemoryTransport>>>>, member: usize },
    Hosts { mapping: Arc<Mapping>, mesh: Arc<Mesh> },
}

/// A rank's links to other hosts.
struct Mesh {
    /// Goes before the thread that carries its links; none once it is closed.
    port: Option<MeshPort>,
    io: IoThread,
    patience: Duration,
}

impl Mesh {
    fn open(address: MeshAddress, detect: Duration) -> Result<(Self, SocketAddr), String> {
        let identity = identity().map_err(|error| error.to_string())?;
        let io = IoThread::start("mesh").map_err(|error| error.to_string())?;
        let idle_timeout = (detect * 3).max(Duration::from_secs(1));
        let handshake_timeout = (detect * 2).clamp(Duration::from_secs(1), Duration::from_secs(5));
        let tuning =
            Tuning { idle_timeout, keep_alive: idle_timeout / 6, handshake_timeout, ..Tuning::default() };
        let ports = address.ports;
        // Of several ranks that try one port at once the others go on to the next.
        let mut candidates = ports.map_or(0..=0, PortRange::ports);
        let listen = move |port| SocketAddr::new(address.listen, port);
        let (tell, told) = mpsc::channel();
        // Not by the thread's own way of waiting, which is not for asynchronous tasks: a rank is made in one.
        let lender = io.lender();
        io.handle().spawn(async move {
            let mut bound = Err(LinkError::Closed);
            for port in &mut candidates {
                bound = Endpoint::bind(listen(port), &identity, tuning);
                if !matches!(bound, Err(LinkError::Busy { .. })) {
                    break;
                }
            }
            let _ = tell.send(bound.map(|endpoint| MeshPort::lent_by(endpoint, lender)));
        });
        let port = told.recv().unwrap_or(Err(LinkError::Closed)).map_err(|error| match (error, ports) {
            (LinkError::Busy { .. }, Some(ports)) => format!(
                "no UDP port of {ports} is free: each rank of this host wants one\nhint: more of them: --ports"
            ),
            (error, _) => error.to_string(),
        })?;
        let reached_at = SocketAddr::new(address.reached_at, port.local_addr().port());
        Ok((Self { port: Some(port), io, patience: detect }, reached_at))
    }

    /// Reaches the leaders of the other hosts. *Blocks* at most `detect`.
    fn connect(&self, plan: MeshPlan) -> Result<QuicMesh, MeshError> {
        let port = self.port.as_ref().expect("it closes with its last user");
        // Backends are built on a thread that belongs to an asynchronous runtime, on which the links must not be waited for.
        std::thread::scope(|scope| scope.spawn(|| QuicMesh::connect(port, plan)).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        // The last frames of this rank may be on their way: others wait for them.
        let Some(port) = self.port.take() else { return };
        let (tell, told) = mpsc::channel();
        let patience = self.patience / 2;
        self.io.handle().spawn(async move {
            port.close(patience).await;
            let _ = tell.send(());
        });
        let _ = told.recv_timeout(self.patience);
    }
}

impl HostFabric {
    /// Through an arena that the parent made.
    ///
    /// *Errors*: it is no arena, or cannot be mapped.
    pub fn from_arena(arena: OwnedFd) -> Result<Self, String> {
        let file = ArenaFile::from_fd(arena).map_err(|error| error.to_string())?;
        let mapping = file.map().map_err(|error| error.to_string())?;
        Ok(Self { route: Route::Shared(mapping) })
    }

    /// Between the threads of this process.
    ///
    /// *Errors*: memory that cannot be had.
    pub fn between_threads(
        world: WorldSize,
        geometry: Geometry,
        mode: Reduce,
        state: Option<StateShape>,
    ) -> Result<Self, String> {
        match mode {
            Reduce::Exact => Self::from_arena(new_arena(world, geometry, state)?),
            Reduce::Ring => {
                let ends = memory_mesh(world.0 as usize).into_iter().map(Some).collect();
                Ok(Self { route: Route::Queues { ends: Arc::new(Mutex::new(ends)), member: 0 } })
            }
        }
    }

    /// The memory of the state that the ranks share, if they share it.
    #[must_use]
    pub fn state(&self) -> Option<ShmState> {
        match &self.route {
            Route::Shared(mapping) => ShmState::of(mapping),
            Route::Queues { .. } | Route::Hosts { .. } => None,
        }
    }

    /// The end that belongs to a member.
    #[must_use]
    pub fn for_member(&self, member: MemberId) -> Self {
        match &self.route {
            Route::Shared(_) | Route::Hosts { .. } => self.clone(),
            Route::Queues { ends, .. } => {
                Self { route: Route::Queues { ends: Arc::clone(ends), member: member.0 as usize } }
            }
        }
    }
}

impl HostFabric {
    /// The same among several hosts, and where ranks of other hosts reach this one.
    ///
    /// *Errors*: no token, or an address that is not this host's.
    pub fn among_hosts(self, address: MeshAddress, detect: Duration) -> Result<(Self, SocketAddr), String> {
        let Route::Shared(mapping) = self.route else {
            return Err("the ranks of several hosts are processes".to_owned());
        };
        let (mesh, reached_at) = Mesh::open(address, detect)?;
        Ok((Self { route: Route::Hosts { mapping, mesh: Arc::new(mesh) } }, reached_at))
    }
}

/// The participants of each host, in the order of ranks, which are neighbours on their host.
fn by_host(participants: &[Participant]) -> Vec<&[Participant]> {
    participants.chunk_by(|one, next| one.node == next.node).collect()
}

/// Connects a generation: inside the host by memory, and between hosts, if there are several, by their first ranks.
fn connect_hosts(
    (mapping, mesh): (&Arc<Mapping>, &Mesh),
    plane: &Plane,
    mode: Reduce,
    wire: Wire,
    counts: &[u32],
) -> Result<Box<dyn Backend>, FabricError> {
    let membership = plane.membership.clone();
    let hosts = by_host(&plane.members.participants);
    let sizes: Vec<u32> = hosts.iter().map(|participants| participants.len() as u32).collect();
    let topology = Topology::new(&sizes).map_err(|error| error.to_string())?;
    let index = topology.host_of(membership.rank);
    let leads = hosts.len() > 1 && topology.local_of(membership.rank) == Rank(0);
    let transport = leads.then(|| {
        let address = |participants: &&[Participant]| {
            participants[0].address.ok_or_else(|| {
                FabricError::from(format!("member {} told no address", participants[0].member))
            })
        };
        let peers = hosts.iter().map(address).collect::<Result<_, _>>()?;
        let plan = MeshPlan { generation: membership.generation, index, peers, patience: mesh.patience };
        mesh.connect(plan).map_err(|error| {
            let unreachable = match &error {
                MeshError::Unreachable { missing, .. } => missing
                    .iter()
                    .flat_map(|host| hosts[*host])
                    .map(|participant| participant.member)
                    .collect(),
                MeshError::Superseded { .. } | MeshError::Stale { .. } => Vec::new(),
            };
            FabricError::Unreached { what: error.to_string(), unreachable }
        })
    });
    let setup = HierarchicalSetup { membership, topology, mode, counts, segment: MESH_SEGMENT };
    let backend = HierarchicalBackend::new(Arc::clone(mapping), transport.transpose()?, setup);
    Ok(Box::new(backend.map_err(|error| error.to_string())?.with_wire(wire)))
}

/// The memory that the ranks of a host share, with room for a state of this shape if they share theirs.
///
/// *Errors*: there is not enough.
pub fn new_arena(world: WorldSize, geometry: Geometry, state: Option<StateShape>) -> Result<OwnedFd, String> {
    let state = match state {
        Some(shape) if world.0 > 1 => shared_shape(shape, world.0 as usize),
        Some(_) | None => SharedShape::default(),
    };
    let file = ArenaFile::with_state(world, geometry, state);
    file.map(ArenaFile::into_fd).map_err(|error| error.to_string())
}

impl Fabric for HostFabric {
    fn connect(
        &mut self,
        plane: &Plane,
        geometry: Geometry,
        mode: Reduce,
        wire: Wire,
        counts: &[u32],
    ) -> Result<Box<dyn Backend>, FabricError> {
        let membership = &plane.membership;
        match &self.route {
            Route::Shared(mapping) => {
                let backend = ShmBackend::new(Arc::clone(mapping), membership.clone(), mode, counts);
                let backend = backend.map_err(|error| error.to_string())?.with_wire(wire);
                Ok(Box::new(match ShmState::of(mapping) {
                    Some(_) => backend.with_sum_in_common(),
                    None => backend,
                }))
            }
            Route::Hosts { mapping, mesh } => connect_hosts((mapping, mesh), plane, mode, wire, counts),
            Route::Queues { ends, member } => {
                let end = ends.lock().expect("no holder panics")[*member].take();
                let end = end.ok_or_else(|| "the queues of this process serve one generation".to_owned())?;
                let backend = HostBackend::new(end, membership.clone(), mode, geometry, counts);
                Ok(Box::new(backend.map_err(|error: CollectiveError| error.to_string())?.with_wire(wire)))
            }
        }
    }
}
