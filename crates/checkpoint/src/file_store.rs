//! Checkpoints in a run folder.
//!
//! The order of [`FileStore::commit`] is the point of this file:
//!
//! 1. each shard is written and synced by its rank, under a temporary folder that no reader looks at;
//! 2. the manifest is written beside them and synced;
//! 3. the temporary folder is synced: now the *names* of shards and manifest are on the disk too;
//! 4. the owner of the run confirms that it still is;
//! 5. the folder is renamed to its final name;
//! 6. `checkpoints/` is synced: now the rename is on the disk.
//!
//! A crash before 5 leaves a temporary folder that is swept at the next start; a crash between 5 and 6 leaves the
//! old name or the new one, and under the new one everything is durable by 1 to 3. So a manifest that can be seen
//! names only durable shards (S6). Removal runs the other way round: renamed away first, deleted after.

use crate::checkpoint::MANIFEST;
use crate::store::Store;
use crate::{
    Check, Checkpoint, CheckpointId, Damage, Disk, Manifest, Owner, RealDisk, StoreError, TensorData,
    UnsyncedShard, seal, shard,
};
use dtrain_types::Rank;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TEMPORARY: &str = ".tmp-";
const TRASH: &str = ".trash-";
const BEST: &str = "best";
const NEW_BEST: &str = ".tmp-best";

/// Keeps checkpoints as folders of `RUN/checkpoints`.
#[derive(Clone, Debug)]
pub struct FileStore {
    disk: Arc<dyn Disk>,
    root: PathBuf,
}

impl FileStore {
    /// The store of the run in `run_dir`, on the disk of this machine. It touches nothing yet.
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        Self::on(Arc::new(RealDisk), run_dir)
    }

    /// The same over another disk.
    #[must_use]
    pub fn on(disk: Arc<dyn Disk>, run_dir: &Path) -> Self {
        Self { disk, root: run_dir.join("checkpoints") }
    }

    /// The folder of a committed checkpoint, whether it exists or not.
    #[must_use]
    pub fn folder(&self, id: CheckpointId) -> PathBuf {
        self.root.join(id.to_string())
    }

    fn temporary(&self, id: CheckpointId) -> PathBuf {
        self.root.join(format!("{TEMPORARY}{id}"))
    }

    fn names(&self) -> Result<Vec<String>, StoreError> {
        match self.disk.names(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(|error| StoreError::io("list", &self.root, error)),
        }
    }

    fn sync_root(&self) -> Result<(), StoreError> {
        self.disk.sync_dir(&self.root).map_err(|error| StoreError::io("sync", &self.root, error))
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let path = self.temporary(manifest.id).join(MANIFEST);
        let write = || {
            let mut out = self.disk.create(&path)?;
            out.write_all(seal::encode(manifest).as_bytes())?;
            out.flush()?;
            out.sync()
        };
        write().map_err(|error| StoreError::io("write", &path, error))
    }

    /// S6: the folder holds the shards of the manifest, all of them and nothing else.
    fn check_temporary(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let (id, folder) = (manifest.id, self.temporary(manifest.id));
        Checkpoint::open_on(Arc::clone(&self.disk), &folder, id, Check::Sizes)?;
        let names = self.disk.names(&folder).map_err(|error| StoreError::io("list", &folder, error))?;
        let named = |file: &str| file == MANIFEST || manifest.shards.iter().any(|shard| shard.file == file);
        match names.into_iter().find(|file| !named(file)) {
            Some(file) => Err(StoreError::Stray { id, file }),
            None => Ok(()),
        }
    }

    fn remove_tree(&self, folder: &Path) -> Result<(), StoreError> {
        match self.disk.remove_tree(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|error| StoreError::io("remove", folder, error)),
        }
    }
}

impl Store for FileStore {
    fn begin(&self, id: CheckpointId) -> Result<(), StoreError> {
        if self.ids()?.contains(&id) {
            return Err(StoreError::Exists(id));
        }
        let folder = self.temporary(id);
        self.disk.create_dir(&folder).map_err(|error| StoreError::io("create", &folder, error))
    }

    fn write_shard(
        &self,
        id: CheckpointId,
        rank: Rank,
        tensors: &[TensorData<'_>],
    ) -> Result<UnsyncedShard, StoreError> {
        shard::write_shard(&*self.disk, &self.temporary(id), (id, rank), tensors)
    }

    fn commit(&self, manifest: &Manifest, owner: &dyn Owner) -> Result<(), StoreError> {
        let (id, folder) = (manifest.id, self.temporary(manifest.id));
        manifest.problems().map_err(|source| StoreError::Manifest { id, source })?;
        self.write_manifest(manifest)?;
        self.check_temporary(manifest)?;
        self.disk.sync_dir(&folder).map_err(|error| StoreError::io("sync", &folder, error))?;
        owner.confirm()?;
        self.disk.rename(&folder, &self.folder(id)).map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => StoreError::Exists(id),
            _ => StoreError::io("rename", &folder, error),
        })?;
        self.sync_root()?;
        tracing::debug!(checkpoint = %id, shards = manifest.shards.len(), "checkpoint committed");
        Ok(())
    }

    fn abandon(&self, id: CheckpointId) -> Result<(), StoreError> {
        self.remove_tree(&self.temporary(id))
    }

    fn ids(&self) -> Result<Vec<CheckpointId>, StoreError> {
        let mut ids: Vec<CheckpointId> = self.names()?.iter().filter_map(|name| name.parse().ok()).collect();
        ids.sort_by(|a, b| b.cmp(a));
        Ok(ids)
    }

    fn open(&self, id: CheckpointId, check: Check) -> Result<Checkpoint, Damage> {
        Checkpoint::open_on(Arc::clone(&self.disk), &self.folder(id), id, check)
    }

    fn mark_best(&self, id: CheckpointId) -> Result<(), StoreError> {
        if !self.ids()?.contains(&id) {
            return Err(StoreError::NoSuch(id));
        }
        let (new, best) = (self.root.join(NEW_BEST), self.root.join(BEST));
        let replace = || {
            match self.disk.remove_file(&new) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
            // Relative, so that the run folder can be moved or copied.
            self.disk.link(&id.to_string(), &new)?;
            self.disk.rename(&new, &best)
        };
        replace().map_err(|error| StoreError::io("replace", &best, error))?;
        self.sync_root()
    }

    fn best(&self) -> Result<Option<CheckpointId>, StoreError> {
        let path = self.root.join(BEST);
        match self.disk.read_link(&path) {
            Ok(target) => Ok(target.parse().ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", &path, error)),
        }
    }

    fn remove(&self, id: CheckpointId) -> Result<(), StoreError> {
        let (folder, trash) = (self.folder(id), self.root.join(format!("{TRASH}{id}")));
        self.disk.rename(&folder, &trash).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::NoSuch(id),
            _ => StoreError::io("rename", &folder, error),
        })?;
        // Were the files deleted before the rename is durable, a crash could show a checkpoint without shards.
        self.sync_root()?;
        self.remove_tree(&trash)
    }

    fn sweep(&self, owner: &dyn Owner) -> Result<(), StoreError> {
        owner.confirm()?;
        for name in self.names()? {
            let path = self.root.join(&name);
            if name == NEW_BEST {
                self.disk.remove_file(&path).map_err(|error| StoreError::io("remove", &path, error))?;
            } else if name.starts_with(TEMPORARY) || name.starts_with(TRASH) {
                tracing::info!(folder = %path.display(), "removing what a crash left");
                self.remove_tree(&path)?;
            }
        }
        Ok(())
    }
}
