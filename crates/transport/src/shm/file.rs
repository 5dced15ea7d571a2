//! The arena's file: anonymous memory with a descriptor, so that it has no name, no size limit of a mounted file
//! system, and ends with its last user.

use super::layout::{HEADER_WORDS, Layout, MAGIC, VERSION};
use super::{Mapping, ShmError};
use dtrain_collective::Geometry;
use dtrain_types::{Bytes, SharedShape, WorldSize};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A memfd that holds an arena. Pass its descriptor to the other processes of the host.
#[derive(Debug)]
pub struct ArenaFile {
    fd: OwnedFd,
    layout: Layout,
}

impl ArenaFile {
    /// Makes a zeroed arena for up to `world` ranks. The descriptor is closed on exec.
    ///
    /// *Errors*: the kernel's, and [`ShmError::TooLarge`].
    pub fn create(world: WorldSize, geometry: Geometry) -> Result<Self, ShmError> {
        Self::with_state(world, geometry, SharedShape::default())
    }

    /// The same with memory for a state that the ranks have in common ([`super::ShmState`]).
    ///
    /// *Errors*: as [`ArenaFile::create`].
    pub fn with_state(world: WorldSize, geometry: Geometry, state: SharedShape) -> Result<Self, ShmError> {
        let layout = Layout::new(world, geometry, state)?;
        let size = Bytes(layout.bytes as u64);
        let system = |what| move |error: Errno| ShmError::System { what, size, error };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("dtrain-arena", flags).map_err(system("create"))?;
        ftruncate(&fd, size.0).map_err(system("size"))?;
        // A file that shrinks under a mapping kills its readers with SIGBUS: nobody may do that, by mistake or not.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(system("seal"))?;
        let Geometry { len, root_slots, scratch_slots } = geometry;
        let words = [MAGIC, VERSION, world.0.into(), len as u64, root_slots as u64, scratch_slots as u64, 0];
        let state = state.floats.into_iter().chain([state.words]).map(|len| len as u64);
        let words = words.into_iter().chain(state);
        let header: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let written = pwrite(&fd, &header, 0).map_err(system("write the header of"))?;
        assert_eq!(written, header.len(), "a memfd takes a header whole");
        Ok(Self { fd, layout })
    }

    /// Takes an arena from a descriptor that came from another process, and believes nothing of it.
    ///
    /// *Errors*: [`ShmError::NotAnArena`], [`ShmError::NotSealed`], [`ShmError::TooLarge`], or the kernel's.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, ShmError> {
        let system = |what| move |error: Errno| ShmError::System { what, size: Bytes(0), error };
        // Any file but a memfd answers EINVAL here, and that is no arena either.
        let seals = fcntl_get_seals(&fd).map_err(system("read the seals of"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(ShmError::NotSealed);
        }
        let mut bytes = [0u8; HEADER_WORDS * 8];
        let read = pread(&fd, &mut bytes, 0).map_err(system("read the header of"))?;
        let expect = |what, got: u64, expected: u64| match got == expected {
            true => Ok(()),
            false => Err(ShmError::NotAnArena { what, got, expected }),
        };
        expect("the header's length", read as u64, bytes.len() as u64)?;
        let word = |i: usize| u64::from_le_bytes(bytes[i * 8..][..8].try_into().expect("eight bytes"));
        expect("the magic number", word(0), MAGIC)?;
        expect("the version", word(1), VERSION)?;
        // Numbers beyond the types become the greatest, which the layout refuses as too large.
        let world = WorldSize(u32::try_from(word(2)).unwrap_or(u32::MAX));
        let size = |i| usize::try_from(word(i)).unwrap_or(usize::MAX);
        let geometry = Geometry { len: size(3), root_slots: size(4), scratch_slots: size(5) };
        let floats = std::array::from_fn(|area| size(7 + area));
        let state = SharedShape { floats, words: size(HEADER_WORDS - 1) };
        let layout = Layout::new(world, geometry, state)?;
        let file = fstat(&fd).map_err(system("look at"))?;
        expect("the file's size", file.st_size as u64, layout.bytes as u64)?;
        Ok(Self { fd, layout })
    }

    /// The buffers of each rank.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.layout.geometry
    }

    /// For how many ranks there is room.
    #[must_use]
    pub fn world(&self) -> WorldSize {
        WorldSize(self.layout.world as u32)
    }

    /// Maps the arena into this process; threads share the mapping. *Errors*: the kernel's.
    pub fn map(&self) -> Result<Arc<Mapping>, ShmError> {
        Mapping::new(self.fd.as_fd(), self.layout).map(Arc::new)
    }

    /// Gives up the file and keeps its descriptor, for a child's `Stdio` or a control message.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Another descriptor of the same arena, closed on exec. *Errors*: the kernel's.
    pub fn try_clone(&self) -> Result<Self, ShmError> {
        let size = Bytes(self.layout.bytes as u64);
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 3);
        let fd = fd.map_err(|error| ShmError::System { what: "duplicate the descriptor of", size, error })?;
        Ok(Self { fd, layout: self.layout })
    }
}

impl AsFd for ArenaFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
