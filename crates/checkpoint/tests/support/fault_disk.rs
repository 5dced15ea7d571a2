//! A disk in memory that keeps its promises and nothing more: what was not synced may be lost at a crash.
//!
//! A file's bytes are durable after its own sync, a name after the sync of its directory. At [`FaultDisk::reboot`]
//! everything else is up to luck: unsynced files are empty, cut, zeroed at the end or whole, and of each
//! directory's unsynced changes an arbitrary first part survives. It can also be full, crash at a chosen operation,
//! or ignore one kind of sync, so that a test can show that it would notice.
//!
//! It does not know what a checkpoint is.

use dtrain_checkpoint::{Disk, DiskRead, DiskWrite};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};
use std::collections::BTreeMap;
use std::io::{self, Cursor, Write};
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A kind of sync that a broken disk, or broken code, leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Of file contents.
    File,
    /// Of directories.
    Dir,
}

/// The disk. Clones are handles to the same disk.
#[derive(Clone, Debug)]
pub struct FaultDisk {
    world: Arc<Mutex<World>>,
}

#[derive(Clone, Debug)]
struct World {
    nodes: Vec<Node>,
    operations: u64,
    crash_at: Option<u64>,
    room: Option<u64>,
    ignored: Option<Sync>,
}

#[derive(Clone, Debug)]
enum Node {
    File { durable: Vec<u8>, now: Vec<u8> },
    Dir { durable: BTreeMap<String, usize>, now: BTreeMap<String, usize>, pending: Vec<Change> },
    Link(String),
}

/// One change of a directory's names; a rename is one change, never half of one.
#[derive(Clone, Debug)]
enum Change {
    Add(String, usize),
    Remove(String),
    Rename(String, String),
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Add(name, node) => drop(names.insert(name.clone(), *node)),
            Self::Remove(name) => drop(names.remove(name)),
            Self::Rename(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
        }
    }
}

fn empty_dir() -> Node {
    Node::Dir { durable: BTreeMap::new(), now: BTreeMap::new(), pending: Vec::new() }
}

fn error(kind: io::ErrorKind) -> io::Error {
    io::Error::from(kind)
}

impl Default for FaultDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl FaultDisk {
    /// An empty disk without faults.
    #[must_use]
    pub fn new() -> Self {
        let world =
            World { nodes: vec![empty_dir()], operations: 0, crash_at: None, room: None, ignored: None };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// Makes every operation from the `operations`-th from now on fail as if the power had gone.
    pub fn crash_after(&self, operations: u64) {
        let mut world = self.world();
        world.crash_at = Some(world.operations + operations);
    }

    /// Lets `bytes` more be written before the disk is full.
    pub fn fill_after(&self, bytes: u64) {
        self.world().room = Some(bytes);
    }

    /// Makes one kind of sync do nothing.
    pub fn ignore(&self, kind: Sync) {
        self.world().ignored = Some(kind);
    }

    /// Whether the crash has happened.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.world().crashed()
    }

    /// The disk after a crash now, without faults, as `luck` would have it.
    #[must_use]
    pub fn reboot(&self, luck: u64) -> Self {
        let mut world = self.world().clone();
        let key = Key::new(Seed(luck), Step(0), MicroBatch(0), Site(0x4449_534B));
        for (i, node) in world.nodes.iter_mut().enumerate() {
            let draw = |what: u32, bound: usize| key.below(2 * i as u32 + what, bound as u32 + 1) as usize;
            match node {
                Node::File { durable, now } if durable != now => {
                    let kept = draw(1, now.len());
                    match draw(0, 3) {
                        0 => now.clone_from(durable),
                        1 => now.truncate(kept),
                        2 => now[kept..].fill(0),
                        _ => {}
                    }
                    durable.clone_from(now);
                }
                Node::Dir { durable, now, pending } => {
                    pending[..draw(0, pending.len())].iter().for_each(|change| change.apply(durable));
                    pending.clear();
                    now.clone_from(durable);
                }
                _ => {}
            }
        }
        (world.crash_at, world.room, world.ignored) = (None, None, None);
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// Replaces the bytes of a file, durably: a disk that rots.
    ///
    /// *Panics* if there is no such file.
    pub fn rot(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let node = world.find(path).expect("a file that exists");
        let Node::File { durable, now } = &mut world.nodes[node] else {
            panic!("{} is no file", path.display())
        };
        change(now);
        durable.clone_from(now);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // A test that panicked while it held the lock has already failed; the state itself is whole.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> io::Result<MutexGuard<'_, World>> {
        let mut world = self.world();
        world.operations += 1;
        if world.crashed() { Err(io::Error::other("the power has gone")) } else { Ok(world) }
    }
}

impl World {
    fn crashed(&self) -> bool {
        self.crash_at.is_some_and(|at| self.operations > at)
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut node = 0;
        for part in path.components() {
            match part {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => {
                    let Node::Dir { now, .. } = &self.nodes[node] else {
                        return Err(error(io::ErrorKind::NotADirectory));
                    };
                    let name = name.to_str().ok_or_else(|| error(io::ErrorKind::InvalidInput))?;
                    node = *now.get(name).ok_or_else(|| error(io::ErrorKind::NotFound))?;
                }
                _ => return Err(error(io::ErrorKind::InvalidInput)),
            }
        }
        Ok(node)
    }

    /// The directory of `path`, and its name there.
    fn parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| error(io::ErrorKind::InvalidInput))?;
        Ok((self.find(path.parent().unwrap_or(Path::new("")))?, name.to_owned()))
    }

    fn names(&self, dir: usize) -> io::Result<&BTreeMap<String, usize>> {
        match &self.nodes[dir] {
            Node::Dir { now, .. } => Ok(now),
            _ => Err(error(io::ErrorKind::NotADirectory)),
        }
    }

    fn change(&mut self, dir: usize, change: Change) -> io::Result<()> {
        let Node::Dir { now, pending, .. } = &mut self.nodes[dir] else {
            return Err(error(io::ErrorKind::NotADirectory));
        };
        change.apply(now);
        pending.push(change);
        Ok(())
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<usize> {
        let (dir, name) = self.parent(path)?;
        if self.names(dir)?.contains_key(&name) {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        self.nodes.push(node);
        let node = self.nodes.len() - 1;
        self.change(dir, Change::Add(name, node))?;
        Ok(node)
    }
}

/// An open file of the disk.
struct Handle {
    disk: FaultDisk,
    node: usize,
}

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut world = self.disk.begin()?;
        let n = world
            .room
            .map_or(bytes.len(), |room| bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
        if n == 0 && !bytes.is_empty() {
            return Err(error(io::ErrorKind::StorageFull));
        }
        world.room = world.room.map(|room| room - n as u64);
        let Node::File { now, .. } = &mut world.nodes[self.node] else {
            unreachable!("a handle is of a file")
        };
        now.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskWrite for Handle {
    fn sync(&mut self) -> io::Result<()> {
        let mut world = self.disk.begin()?;
        if world.ignored != Some(Sync::File)
            && let Node::File { durable, now } = &mut world.nodes[self.node]
        {
            durable.clone_from(now);
        }
        Ok(())
    }
}

impl Disk for FaultDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.begin()?;
        let ancestors: Vec<_> = dir.ancestors().filter(|dir| dir.file_name().is_some()).collect();
        for dir in ancestors.into_iter().rev() {
            match world.add(dir, empty_dir()) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn DiskWrite>> {
        let node = self.begin()?.add(file, Node::File { durable: Vec::new(), now: Vec::new() })?;
        Ok(Box::new(Handle { disk: self.clone(), node }))
    }

    fn open(&self, file: &Path) -> io::Result<(Box<dyn DiskRead>, u64)> {
        let world = self.begin()?;
        match &world.nodes[world.find(file)?] {
            Node::File { now, .. } => Ok((Box::new(Cursor::new(now.clone())), now.len() as u64)),
            _ => Err(error(io::ErrorKind::InvalidInput)),
        }
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        let world = self.begin()?;
        Ok(world.names(world.find(dir)?)?.keys().cloned().collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.begin()?;
        let node = world.find(dir)?;
        if world.ignored != Some(Sync::Dir)
            && let Node::Dir { durable, now, pending } = &mut world.nodes[node]
        {
            durable.clone_from(now);
            pending.clear();
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.begin()?;
        let ((dir, old), (other, new)) = (world.parent(from)?, world.parent(to)?);
        assert_eq!(dir, other, "renames stay inside one directory");
        if !world.names(dir)?.contains_key(&old) {
            return Err(error(io::ErrorKind::NotFound));
        }
        if let Some(node) = world.names(dir)?.get(&new)
            && world.names(*node).is_ok_and(|names| !names.is_empty())
        {
            return Err(error(io::ErrorKind::DirectoryNotEmpty));
        }
        world.change(dir, Change::Rename(old, new))
    }

    fn remove_file(&self, file: &Path) -> io::Result<()> {
        let mut world = self.begin()?;
        let (dir, name) = world.parent(file)?;
        if !world.names(dir)?.contains_key(&name) {
            return Err(error(io::ErrorKind::NotFound));
        }
        world.change(dir, Change::Remove(name))
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        // Name by name, so that a crash can come in the middle.
        let names = self.names(dir)?;
        for name in names {
            let path = dir.join(name);
            let inner = self.begin().and_then(|world| Ok(world.names(world.find(&path)?).is_ok()))?;
            if inner { self.remove_tree(&path)? } else { self.remove_file(&path)? }
        }
        self.remove_file(dir)
    }

    fn link(&self, target: &str, at: &Path) -> io::Result<()> {
        self.begin()?.add(at, Node::Link(target.to_owned())).map(drop)
    }

    fn read_link(&self, at: &Path) -> io::Result<String> {
        let world = self.begin()?;
        match &world.nodes[world.find(at)?] {
            Node::Link(target) => Ok(target.clone()),
            _ => Err(error(io::ErrorKind::InvalidInput)),
        }
    }
}
