//! Clients over an upgrade: their sockets go to the next server, and come from the previous one.

use super::listen::KeptListener;
use crate::keeper::handover::{Handed, ServerSerial};
use crate::keeper::{HandoverSource, HandoverTarget, KeeperLink};
use forebay_frontend_nbd::{HandedOver, NbdServer};
use forebay_runtime::Runtime;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The largest number of a server or a client: every reader of JSON can represent it.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// What the previous server has handed over.
#[derive(Default)]
pub(super) struct FromPrevious {
    source: HandoverSource,
    /// Whose number and clients this server continues.
    serial: Option<ServerSerial>,
    listeners: Vec<KeptListener>,
    connections: Vec<(HandedOver, Duration)>,
    /// What takes it over.
    next: Option<Arc<ToNext>>,
}

impl FromPrevious {
    pub(super) fn of(link: &mut KeeperLink) -> Self {
        Self { source: std::mem::take(&mut link.source), ..Self::default() }
    }

    /// Sets what takes everything over.
    pub(super) fn set_next(&mut self, next: Arc<ToNext>) {
        self.next = Some(next);
    }

    /// Takes the listeners, which are the first message. From now on, clients that connect to them
    /// depend on this process. Those that are not configured any more are closed, so that others
    /// can be bound in their place.
    pub(super) fn listeners(&mut self, configured: &[String]) -> Vec<KeptListener> {
        self.receive();
        let mut listeners = std::mem::take(&mut self.listeners);
        listeners.retain(|kept| configured.contains(&kept.configured));
        listeners
    }

    /// Takes everything else, and ends the queue. Called when nothing can fail any more, what is
    /// taken ends with this process, and before the first client, whose number follows those of the
    /// previous server.
    pub(super) fn take_connections(&mut self) {
        while self.receive() {}
        self.source.close();
        if let Some((next, serial)) = self.next.as_ref().zip(self.serial) {
            let ServerSerial { instance, clients_joined } = serial;
            next.instance.store(instance & NUMBER_MAX, Ordering::Relaxed);
            forebay_runtime::continue_clients(&next.runtime, clients_joined & NUMBER_MAX);
        }
    }

    fn receive(&mut self) -> bool {
        let Some(bundle) = self.source.next() else { return false };
        if bundle.sockets.is_empty() {
            tracing::warn!("closing connections of the previous server, which cannot be read");
            return true;
        }
        self.serial = Some(bundle.serial);
        for (socket, handed) in bundle.sockets {
            let session = match handed {
                Handed::Listener { configured, file } => {
                    self.listeners.push(KeptListener { socket, configured, file });
                    continue;
                }
                Handed::Session(record) => Some(record),
                Handed::Accepted => None,
            };
            self.connections.push((HandedOver { socket, session }, bundle.since));
        }
        true
    }

    /// Serves the connections.
    pub(super) fn serve(self) {
        let Some(next) = self.next.filter(|_| !self.connections.is_empty()) else { return };
        let (mut taken, mut closed) = (0, 0);
        let mut longest = Duration::ZERO;
        for (connection, since) in self.connections {
            longest = longest.max(since);
            match next.nbd.take_over(connection, since) {
                Ok(()) => taken += 1,
                Err(error) => {
                    closed += 1;
                    tracing::warn!(%error, "a connection is not taken over");
                }
            }
        }
        let paused = longest;
        tracing::info!(taken, closed, ?paused, "continuing the connections of the previous server");
    }
}

/// What this server hands over: its number, its listeners, and the connections that leave it.
pub(super) struct ToNext {
    runtime: Arc<Runtime>,
    nbd: Arc<NbdServer>,
    /// Identifies this server among those that have served. A server that takes over the clients
    /// of another one continues with its number: then a client is the same for both.
    instance: Arc<AtomicU64>,
    listeners: Mutex<Vec<KeptListener>>,
}

impl ToNext {
    pub(super) fn new(runtime: Arc<Runtime>, nbd: Arc<NbdServer>) -> Self {
        let number = RandomState::new().build_hasher().finish() & NUMBER_MAX;
        let (instance, listeners) = (Arc::new(AtomicU64::new(number)), Mutex::default());
        Self { runtime, nbd, instance, listeners }
    }

    /// The number of this server, which changes when it takes over the clients of another one.
    pub(super) fn instance(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.instance)
    }

    /// Keeps a listener for the next server. A former socket at the same path has lost its file.
    pub(super) fn keep(&self, listener: KeptListener) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if listener.file.is_some() {
            listeners.retain(|kept| kept.configured != listener.configured);
        }
        listeners.push(listener);
    }

    /// Keeps a listener no longer, which is being closed. Of several at one address, the oldest.
    pub(super) fn forget(&self, configured: &str) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = listeners.iter().position(|kept| kept.configured == configured) {
            listeners.remove(at);
        }
    }

    /// A listener that is kept has another address: that of the same socket with other rights.
    pub(super) fn rename(&self, former: &str, configured: &str) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for kept in listeners.iter_mut().filter(|kept| kept.configured == former) {
            configured.clone_into(&mut kept.configured);
        }
    }

    /// Serves the clients again that have left for an upgrade that failed.
    pub(super) fn take_back(&self) {
        let (connections, _) = self.nbd.end_handover();
        for connection in connections {
            if let Err(error) = self.nbd.take_over(connection, Duration::ZERO) {
                tracing::error!(%error, "a connection is closed");
            }
        }
    }

    /// Hands the listeners and the connections that have left over to the next server. Called when
    /// the workers have ended.
    pub(super) fn hand_over(&self, target: &HandoverTarget) {
        let (connections, closed) = self.nbd.end_handover();
        let mut kept = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let listeners = kept.drain(..).map(|KeptListener { socket, configured, file }| {
            (socket, Handed::Listener { configured, file })
        });
        let count = connections.len();
        let connections = connections.into_iter().map(|HandedOver { socket, session }| {
            (socket, session.map_or(Handed::Accepted, Handed::Session))
        });
        let sockets: Vec<(OwnedFd, Handed)> = listeners.chain(connections).collect();
        let clients_joined = forebay_runtime::clients_joined(&self.runtime);
        let instance = self.instance.load(Ordering::Relaxed);
        match target.send(ServerSerial { instance, clients_joined }, &sockets) {
            Ok(sent) => {
                let unsent = sockets.len() - sent;
                tracing::info!(
                    handed = count.saturating_sub(unsent),
                    closed = closed + unsent,
                    "connections handed over to the next server"
                );
            }
            Err(error) => {
                let closed = closed + count;
                tracing::warn!(%error, closed, "connections cannot be handed over, and are closed");
            }
        }
    }
}
