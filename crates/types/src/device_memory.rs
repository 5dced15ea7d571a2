//! Memory that the host cannot follow addresses into, passed on by those who do not know whose it is.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Memory of a device: whoever made it and whoever works on it agree on what it is. It lives as long as a clone of this.
#[derive(Clone)]
pub struct DeviceMemory(Arc<dyn Any + Send + Sync>);

impl DeviceMemory {
    /// Memory of this kind.
    #[must_use]
    pub fn new<M: Any + Send + Sync>(memory: M) -> Self {
        Self(Arc::new(memory))
    }

    /// The memory, if it is of this kind.
    #[must_use]
    pub fn of<M: Any>(&self) -> Option<&M> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceMemory")
    }
}
