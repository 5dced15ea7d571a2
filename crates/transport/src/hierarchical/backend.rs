//! The collectives of one rank of a world that spans hosts; the stages are told in the parent.
//!
//! Local ranks, indices in the arena, are turned into ranks of the world wherever they can be seen, in errors too: a lost
//! host is told as its leader. It does not know what carries the frames.

use super::link::Link;
use super::{HierarchicalError, Topology};
use crate::shm::{Group, Isa, Mapping, ShmAbort, ShmError, Strips};
use dtrain_collective::{
    Abort, Aborter, Arena, Assignment, Backend, Chunks, CollectiveError, Geometry, HostPlan, Intent, Moves,
    Narrow, Op, OpKind, Progress, RankMachine, Reduce, Sequence, Take, Transport, host_range, rank_roots,
};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, Wire, WorldSize, without};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A rank's place in a generation that spans hosts.
#[derive(Clone, Debug)]
pub struct HierarchicalSetup<'a> {
    /// The generation, by ranks of the whole world.
    pub membership: Assignment,
    /// Which of them live where.
    pub topology: Topology,
    /// The order of the sums.
    pub mode: Reduce,
    /// Steps that are prepared for: micro-batches.
    pub counts: &'a [u32],
    /// The most floats in a frame, the same on all hosts; normally [`dtrain_collective::SEGMENT`].
    pub segment: usize,
}

/// The backend of one rank in a world of several hosts.
pub struct HierarchicalBackend<T> {
    group: Group,
    topology: Topology,
    rank: Rank,
    host: usize,
    /// Micro-batches of the ranks of this host.
    ranges: Vec<MicroRange>,
    /// One past the last micro-batch of a full step.
    covered: u32,
    mode: Reduce,
    plans: BTreeMap<u32, HostPlan>,
    /// On the leader of a host, if there are others.
    link: Option<Link<T>>,
    /// Trailers of the host's leaves, and of its roots.
    leaf_trailers: Vec<Trailer>,
    root_trailers: Vec<Trailer>,
    trailer_stack: Vec<Trailer>,
    /// In a collective that moves floats: what this rank gives, which local ranks take, and what the hosts do.
    given: Range<usize>,
    take: Take,
    /// Elements of slot 0 that a collective moves which adds nothing: those up to the last that anybody gives.
    extent: usize,
    takers: Vec<bool>,
    host_moves: Vec<Moves>,
    /// What this rank has in a gather of the rest, and no rank of the host before it, if that was told.
    laid: Option<Vec<Range<usize>>>,
    strips: Strips,
    /// Of how many strips this rank has added up its share for the next sum.
    folded: usize,
    /// How the offers for the next sum went.
    offered: Result<(), CollectiveError>,
    progress: Progress,
}

impl<T: Transport> HierarchicalBackend<T> {
    /// Joins a generation over the arena of this host, in which it takes its local index.
    ///
    /// The first rank of each host brings a transport in which hosts are ranks; nobody else does, and with one host
    /// nobody at all. The arena may be larger than needed; [`Geometry::bound`] is always enough.
    ///
    /// *Errors*: [`HierarchicalError`]. *Panics* as [`Backend::prepare`], and if `segment` is 0.
    pub fn new(
        mapping: Arc<Mapping>,
        transport: Option<T>,
        setup: HierarchicalSetup<'_>,
    ) -> Result<Self, HierarchicalError> {
        let HierarchicalSetup { membership, topology, mode, counts, segment } = setup;
        membership.check().map_err(ShmError::from)?;
        if topology.world() != membership.world() {
            let (hosts, members) = (topology.world(), membership.world());
            return Err(HierarchicalError::World { hosts, members });
        }
        let (generation, rank) = (membership.generation, membership.rank);
        let (host, local) = (topology.host_of(rank), topology.local_of(rank));
        let ranges = membership.ranges[topology.ranks(host)].to_vec();
        check_room(&mapping, generation, &ranges, counts, mode)?;
        let leads = local == Rank(0) && topology.hosts() > 1;
        let what = match (leads, transport.is_some()) {
            (true, false) => Some("leads a host and has no transport to the others"),
            (false, true) => Some("has a transport and is no leader of one host among several"),
            _ => None,
        };
        if let Some(what) = what {
            return Err(HierarchicalError::Link { rank, what });
        }
        let group = Group::join(mapping, generation, local, ranges.len())?;
        let strips = Strips::new(group.geometry().len);
        let hosts = topology.hosts();
        let link = transport.map(|transport| {
            let by_host = |host| host_range(&membership.ranges[topology.ranks(host)]);
            let ranges = (0..hosts).map(by_host).collect();
            let of_hosts = Assignment { generation, rank: Rank(host as u32), ranges };
            let machine =
                RankMachine::over(group.slots(), of_hosts, mode, segment).map_err(ShmError::from)?;
            Link::new(machine, transport, group.abort_handle())
                .map_err(|error| HierarchicalError::Watch { error: error.to_string() })
        });
        let mut backend = Self {
            covered: host_range(&membership.ranges).hi,
            takers: Vec::with_capacity(ranges.len()),
            host_moves: Vec::with_capacity(hosts),
            link: link.transpose()?,
            group,
            topology,
            rank,
            host,
            ranges,
            mode,
            plans: BTreeMap::new(),
            leaf_trailers: Vec::new(),
            root_trailers: Vec::new(),
            trailer_stack: Vec::new(),
            given: 0..0,
            laid: None,
            take: Take::All,
            extent: 0,
            strips,
            folded: 0,
            offered: Ok(()),
            progress: Progress::default(),
        };
        backend.prepare(counts);
        Ok(backend)
    }

    /// Uses a lower instruction set than the processor has; the bits stay the same. *Panics* if it lacks it.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.group.set_isa(isa);
        self
    }

    /// Says how many cores the ranks of this host may use, where that is fewer than the machine has (a container).
    #[must_use]
    pub fn with_cores(mut self, cores: usize) -> Self {
        self.group.set_cores(cores);
        self
    }

    /// Rounds every sum, on the host and between hosts, as the owner of the slots rounds the roots; the same on all ranks.
    #[must_use]
    pub fn with_wire(mut self, wire: Wire) -> Self {
        self.group.set_wire(wire);
        if let Some(link) = &mut self.link {
            link.set_wire(wire);
        }
        self
    }

    /// A handle that stops every rank of a generation on this host, for a process that is none of them. It ends the
    /// leader's wait for the other hosts too.
    #[must_use]
    pub fn watcher(mapping: Arc<Mapping>, generation: Generation) -> Aborter {
        Aborter::new(Arc::new(ShmAbort::new(mapping, generation)))
    }

    fn world(&self) -> WorldSize {
        self.topology.world()
    }

    fn plan(&self, count: u32) -> &HostPlan {
        self.plans.get(&count).unwrap_or_else(|| panic!("steps of {count} micro-batches were not prepared"))
    }

    /// Adds up what all ranks of the host have given, and on the leader sends what they have all added up.
    fn go_ahead(&mut self, seq: Sequence, count: u32, from: usize) -> Result<(), CollectiveError> {
        self.group.check()?;
        self.progress.may_begin(seq)?;
        let (local, ranks) = (self.group.rank(), 0..self.group.world());
        self.group.open_from(from);
        self.group.words().give(local, seq, self.strips.behind(from));
        // A rank without a root has nothing to give. The leader's slots take the sums, so they have to be given in any case.
        let gives = |rank: &usize| *rank == 0 || self.plan(count).roots_of(*rank) > 0;
        let givers = ranks.clone().filter(gives);
        let given = givers.map(|rank| self.group.words().given(rank, seq)).min().unwrap_or(0);
        self.fold(count, given);
        self.group.words().fold(local, seq, given);
        let folded = ranks.map(|rank| self.group.words().folded(rank, seq)).min().unwrap_or(0);
        match &mut self.link {
            Some(link) if folded > 0 => {
                let offered = link.offer(seq, count, self.strips.start(folded));
                self.or_abort(offered)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        std::mem::replace(&mut self.offered, Ok(()))?;
        self.group.check()?;
        self.progress.may_begin(seq)?;
        op.assert_fits(self.world());
        match op.reduction() {
            Some((count, trailers)) => {
                let own = self.plan(count).roots_of(self.group.rank());
                assert_eq!(
                    trailers.len(),
                    own,
                    "a step of {count} micro-batches needs a trailer for each own root"
                );
                let roots = trailers.iter().enumerate();
                roots.for_each(|(root, trailer)| self.group.put_trailer(root, trailer));
            }
            None => self.plan_moves(op),
        }
        let intent = Intent::new(seq, op);
        self.progress.begin(intent);
        self.group.announce(intent);
        Ok(())
    }

    /// Notes who gives and takes what: this rank, its peers, and the hosts as wholes.
    fn plan_moves(&mut self, op: &Op<'_>) {
        let (world, len) = (self.world().0 as usize, self.group.geometry().len);
        let of = |rank: usize| op.moves(rank, world, len).expect("it is no reduction");
        self.given = of(self.rank.index()).gives.unwrap_or(0..0);
        let ends = (0..world).filter_map(|rank| of(rank).gives).map(|given| given.end);
        self.extent = ends.max().unwrap_or(0);
        self.take = op.take();
        self.takers.clear();
        self.takers.extend(self.topology.ranks(self.host).map(|rank| of(rank).takes));
        self.host_moves.clear();
        let hosts = (0..self.topology.hosts()).map(|host| Moves::together(self.topology.ranks(host).map(of)));
        self.host_moves.extend(hosts);
    }

    fn complete(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        self.group.check()?;
        let intent = self.progress.running(seq)?;
        let reduces = matches!(intent.kind, OpKind::AllReduce | OpKind::ReduceScatter);
        self.on_host(|group| group.agree(intent))?;
        match reduces {
            true => self.fold(intent.operand, self.strips.count()),
            false => self.stage(),
        }
        self.on_host(Group::meet)?;
        match reduces {
            true => self.on_leader(|leader| leader.sum_of_hosts(intent)),
            false => self.on_leader(|leader| leader.exchange(intent)),
        }?;
        self.on_host(Group::meet)?;
        self.spread(intent.kind);
        let reduced = if reduces { self.group.get_trailer(0, 0) } else { Trailer::EMPTY };
        self.on_host(Group::meet)?;
        self.group.leave();
        self.folded = 0;
        self.progress.end();
        Ok(reduced)
    }

    /// Does something with the peers of this host; in its errors they are ranks of the world.
    fn on_host(
        &mut self,
        work: impl FnOnce(&mut Group) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let first = self.topology.leader(self.host).0;
        work(&mut self.group).map_err(|error| with_ranks(error, |local| Rank(first + local.0)))
    }

    /// Adds this rank's share of the last `strips` strips of all roots of the host into the leader's slots, unless it has.
    fn fold(&mut self, count: u32, strips: usize) {
        let plan = self.plans.get(&count).expect("looked up at the start");
        for strip in self.folded..strips {
            let strip = self.strips.strip(strip);
            let share = Chunks::even(strip.len(), self.group.world()).chunk(self.group.rank());
            let part = strip.start + share.start..strip.start + share.end;
            // In this order: see `HostPlan`.
            for fold in plan.folds.iter().filter(|fold| !fold.is_in_place()) {
                self.group.sum(&fold.order, &fold.starts, &[fold.out], part.clone());
            }
        }
        self.folded = self.folded.max(strips);
    }

    /// Lays what this rank gives into the leader's slot 0, or what it has of all. Parts of different ranks do not overlap.
    fn stage(&mut self) {
        let local = self.group.rank();
        if local == 0 {
            return;
        }
        let lays = match (self.take, &self.laid) {
            (Take::Rest, Some(laid)) => &laid[..],
            (Take::Rest, None) | (Take::All | Take::Needed, _) => std::slice::from_ref(&self.given),
        };
        let lays = lays.iter().filter(|run| !run.is_empty());
        lays.for_each(|run| self.group.copy_slot_0(local, 0, run.clone()));
    }

    /// On the leader: does for the host what the collective does for ranks. If that fails, the peers are waked too.
    fn on_leader(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        if self.group.rank() != 0 {
            return Ok(());
        }
        let result = work(self);
        self.or_abort(result)
    }

    fn exchange(&mut self, intent: Intent) -> Result<(), CollectiveError> {
        match &mut self.link {
            Some(link) => {
                let what = (intent.kind, intent.operand);
                link.exchange(intent.sequence, what, self.take, &self.host_moves)
            }
            None => Ok(()),
        }
    }

    /// Tells an error between hosts to the peers too.
    fn or_abort(&self, result: Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        let result = result.map_err(|error| with_hosts(error, &self.topology));
        if let Err(error) = &result {
            self.group.abort_handle().abort(&error.to_string());
        }
        result
    }

    fn sum_of_hosts(&mut self, intent: Intent) -> Result<(), CollectiveError> {
        let plan = self.plans.get(&intent.operand).expect("looked up at the start");
        self.leaf_trailers.clear();
        let leaves = plan.leaves.iter().map(|(rank, root)| self.group.get_trailer(*rank, *root));
        self.leaf_trailers.extend(leaves);
        self.root_trailers.clear();
        for fold in &plan.folds {
            let leaves = &self.leaf_trailers[fold.leaves.clone()];
            self.root_trailers.push(fold.order.sum_trailers(leaves, &mut self.trailer_stack));
        }
        let reduced = match &mut self.link {
            Some(link) => link.sum(intent.sequence, intent.operand, &self.root_trailers)?,
            // The range of the only host is the whole step: one root.
            None => self.root_trailers[0],
        };
        self.group.put_trailer(0, &reduced);
        Ok(())
    }

    /// Copies this rank's chunk of the leader's slot 0 to all who take it.
    fn spread(&mut self, kind: OpKind) {
        let (local, peers) = (self.group.rank(), 1..self.group.world());
        let part = self.local_chunks().chunk(local);
        match kind {
            OpKind::Barrier => {}
            OpKind::AllReduce => peers.for_each(|to| self.group.copy_slot_0(0, to, part.clone())),
            OpKind::ReduceScatter if local == 0 => {}
            OpKind::ReduceScatter => {
                let own = Chunks::even(self.group.geometry().len, self.world().0 as usize);
                self.group.copy_slot_0(0, local, own.chunk(self.rank.index()));
            }
            OpKind::AllGather | OpKind::Broadcast | OpKind::Copy => {
                let part = Chunks::even(self.extent, self.group.world()).chunk(local);
                let takers = peers.filter(|to| self.takers[*to]);
                takers.for_each(|to| self.group.copy_slot_0(0, to, part.clone()));
            }
        }
    }

    /// How the ranks of this host share the work.
    fn local_chunks(&self) -> Chunks {
        Chunks::even(self.group.geometry().len, self.group.world())
    }
}

/// Whether the arena has the ranks and the slots that this host needs.
fn check_room(
    mapping: &Mapping,
    generation: Generation,
    ranges: &[MicroRange],
    counts: &[u32],
    mode: Reduce,
) -> Result<(), ShmError> {
    let (arena, world) = (mapping.geometry(), WorldSize(ranges.len() as u32));
    let mut needed = Geometry::plan(arena.len, ranges, counts, mode);
    for &count in counts {
        needed.root_slots = needed.root_slots.max(rank_roots(host_range(ranges), count, mode).len());
    }
    let fits = needed.root_slots <= arena.root_slots && needed.scratch_slots <= arena.scratch_slots;
    if fits && world <= mapping.world() {
        return Ok(());
    }
    Err(ShmError::TooSmall { generation, world, needed, arena_world: mapping.world(), arena })
}

/// The same error with other ranks in it.
fn with_ranks(error: CollectiveError, rank: impl Fn(Rank) -> Rank) -> CollectiveError {
    use CollectiveError as E;
    match error {
        E::Foreign { from, tag, why } => E::Foreign { from: rank(from), tag, why },
        E::Mismatch { from, sequence, theirs, ours } => {
            E::Mismatch { from: rank(from), sequence, theirs, ours }
        }
        E::Superseded { from, generation } => E::Superseded { from: rank(from), generation },
        E::Lost { to, what } => E::Lost { to: rank(to), what },
        E::Aborted { .. } | E::Dead | E::Device { .. } | E::Assignment { .. } => error,
    }
}

/// An error between hosts, told with their leaders. A transport may name a host that there is not.
fn with_hosts(error: CollectiveError, topology: &Topology) -> CollectiveError {
    let leader = |host: Rank| match host.index() < topology.hosts() {
        true => topology.leader(host.index()),
        false => host,
    };
    with_ranks(error, leader)
}

impl<T: Transport> Backend for HierarchicalBackend<T> {
    fn prepare(&mut self, counts: &[u32]) {
        for &count in counts {
            let covered = self.covered;
            assert!((1..=covered).contains(&count), "a step has 1 to {covered} micro-batches, not {count}");
            let plan =
                HostPlan::new(&self.ranges, count, self.mode, |rank, slot| self.group.slot(rank, slot));
            plan.folds.iter().for_each(|fold| self.group.prepare(&fold.order));
            self.leaf_trailers.reserve(plan.leaves.len());
            self.trailer_stack.reserve(plan.leaves.len());
            self.root_trailers.reserve(plan.folds.len());
            self.plans.insert(count, plan);
        }
        if let Some(link) = &mut self.link {
            link.prepare(counts);
        }
    }

    fn arena(&mut self) -> &mut dyn Arena {
        self.progress.assert_idle();
        self.group.arena()
    }

    fn reduced_before(&mut self) -> Option<&[f32]> {
        Some(self.group.own_slot())
    }

    fn narrow(&mut self, narrow: &Narrow) {
        self.progress.assert_idle();
        let hosts: Vec<_> = (0..self.topology.hosts()).map(|host| self.topology.ranks(host)).collect();
        let before = hosts[self.host].start..self.rank.index();
        let taken: Vec<_> = before.flat_map(|rank| narrow.has(rank)).cloned().collect();
        self.laid = Some(without(narrow.has(self.rank.index()), &taken));
        if let Some(link) = &mut self.link {
            link.narrow(narrow.together(&hosts));
        }
    }

    fn takes_offers(&self) -> bool {
        self.mode == Reduce::Exact && self.topology.hosts() > 1
    }

    fn offer(&mut self, seq: Sequence, micro_batches: u32, from: usize) {
        if self.takes_offers() && self.offered.is_ok() {
            self.offered = self.go_ahead(seq, micro_batches, from);
        }
    }

    fn start(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        let result = self.begin(seq, op);
        self.progress.or_die(result)
    }

    fn finish(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        let result = self.complete(seq);
        self.progress.or_die(result)
    }

    fn aborter(&self) -> Aborter {
        Aborter::new(self.group.abort_handle())
    }

    fn describe(&self) -> String {
        let mode = self.mode.describe(self.group.wire());
        let between = self.link.as_ref().map_or(String::new(), |link| format!(" and {}", link.describe()));
        let (host, hosts) = (self.host, self.topology.hosts());
        format!(
            "shared memory{between}, {mode}, rank {} of {}, host {host} of {hosts}",
            self.rank,
            self.world()
        )
    }
}
