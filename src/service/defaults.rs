//! What each queue gives to specs that leave it out, as this node last read it.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use crate::domain::{Defaults, QueueName};

/// Read at start, after every change made through this node, and every second for those made through others.
#[derive(Default)]
pub(super) struct QueueDefaults(RwLock<Arc<HashMap<QueueName, Defaults>>>);

impl QueueDefaults {
    /// Queues that are not in it have none.
    pub fn current(&self) -> Arc<HashMap<QueueName, Defaults>> {
        self.0.read().expect("nobody panics with it").clone()
    }

    pub fn replace(&self, defaults: HashMap<QueueName, Defaults>) {
        *self.0.write().expect("nobody panics with it") = Arc::new(defaults);
    }
}
