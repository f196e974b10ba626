//! A server's ends of the queue of sockets: one from the server before it, one to the server after
//! it. With a keeper, both are ends of the keeper's queue. A service manager gets a new queue with
//! each hand-over, and stores its receiving end.

use super::handover::{self, Bundle, Handed, ServerSerial};
use super::systemd;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The environment variable with the descriptor numbers of the keeper's queue: of the end that
/// receives, and of the one that sends. Servers of former versions ignore it.
pub(super) const VARIABLE: &str = "FOREBAY_HANDOVER";

/// The queue from the previous server.
#[derive(Debug, Default)]
pub(crate) struct HandoverSource {
    receiver: Option<OwnedFd>,
    /// The service manager stores the queue.
    is_stored: bool,
}

/// The queue to the next server.
#[derive(Debug, Default)]
pub(crate) enum HandoverTarget {
    /// There is none: connections end with their server.
    #[default]
    None,
    /// The end of the keeper's queue that sends.
    Keeper(OwnedFd),
    /// The service manager stores a queue.
    Store,
}

/// The queue of a keeper, if the keeper has one.
pub(super) fn of_keeper() -> (HandoverSource, HandoverTarget) {
    let numbers = std::env::var(VARIABLE).unwrap_or_default();
    let numbers = numbers
        .split_once(',')
        .and_then(|(receiver, sender)| Some((receiver.parse().ok()?, sender.parse().ok()?)));
    let taken = numbers.and_then(|(receiver, sender)| {
        let receiver = forebay_runtime::inherit(receiver).ok()?;
        Some((receiver, forebay_runtime::inherit(sender).ok()?))
    });
    match taken {
        Some((receiver, sender)) => (
            HandoverSource { receiver: Some(receiver), is_stored: false },
            HandoverTarget::Keeper(sender),
        ),
        None => Default::default(),
    }
}

/// The queue in the descriptor store. Connections that have waited too long are closed: only a
/// process of the service can do that.
pub(super) fn of_store() -> (HandoverSource, HandoverTarget) {
    let receiver = systemd::stored_queue().and_then(|number| forebay_runtime::inherit(number).ok());
    let mut source = HandoverSource { is_stored: receiver.is_some(), receiver };
    let waiting = source.receiver.as_ref().map(|it| handover::waiting_since(it.as_fd()));
    if waiting.is_some_and(|since| since.is_none_or(|since| since > handover::wait_max())) {
        source.close();
    }
    let target = if systemd::keeps_queue() { HandoverTarget::Store } else { HandoverTarget::None };
    (source, target)
}

impl HandoverSource {
    /// Takes the next sockets, which end with this process from now on.
    pub(crate) fn next(&mut self) -> Option<Bundle> {
        handover::receive(self.receiver.as_ref()?.as_fd())
    }

    /// Ends the queue. What is still in it is closed, unless it is the keeper's, which does so
    /// itself.
    pub(crate) fn close(&mut self) {
        self.receiver = None;
        if std::mem::take(&mut self.is_stored) {
            systemd::remove_queue();
        }
    }
}

impl HandoverTarget {
    /// Whether there is a next server that could get anything.
    pub(crate) const fn is_some(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Sends sockets to the next server, and returns how many were sent. The caller exits.
    ///
    /// # Errors
    /// The system lacks memory or descriptors, or the keeper or the service manager does not
    /// answer.
    pub(crate) fn send(
        &self,
        serial: ServerSerial,
        sockets: &[(OwnedFd, Handed)],
    ) -> io::Result<usize> {
        match self {
            Self::None => Err(Errno::NOTCONN.into()),
            Self::Keeper(sender) => handover::send(sender.as_fd(), serial, sockets),
            Self::Store => {
                let (receiver, sender) = handover::queue()?;
                let sent = handover::send(sender.as_fd(), serial, sockets)?;
                systemd::store_queue(receiver.as_fd())?;
                Ok(sent)
            }
        }
    }
}
