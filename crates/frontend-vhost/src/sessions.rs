//! The thread that serves the sockets of virtual machine monitors. It waits for all of them, and
//! for none in particular.

use crate::inbox::{Notice, SessionsEvent, SessionsInbox};
use crate::session::MonitorSession;
use crate::workers::WorkerMail;
use forebay_frontend::Peer;
use forebay_vhost::block::GuestDisk;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Monitors at most that are connected at a time.
const SESSIONS_MAX: usize = 256;

/// The socket of a volume.
struct VolumeSocket {
    volume: Arc<str>,
    listener: OwnedFd,
    device: GuestDisk,
}

/// The state of the thread.
pub(crate) struct Sessions {
    inbox: Arc<SessionsInbox>,
    workers: WorkerMail,
    sockets: Vec<VolumeSocket>,
    sessions: Vec<MonitorSession>,
    next_session: u64,
    has_ended: bool,
}

impl Sessions {
    pub(crate) fn new(inbox: Arc<SessionsInbox>, workers: WorkerMail) -> Self {
        let (sockets, sessions) = (Vec::new(), Vec::new());
        Self { inbox, workers, sockets, sessions, next_session: 0, has_ended: false }
    }

    /// Serves until the server is dropped.
    pub(crate) fn run(mut self) {
        while !self.has_ended {
            let (ready_sockets, ready_sessions) = self.wait();
            for event in self.inbox.take() {
                self.handle(event);
            }
            for at in ready_sessions {
                self.sessions[at].receive(&self.workers);
            }
            for volume in ready_sockets {
                let _ = self.accept(&volume);
            }
            self.sessions.retain(|session| !session.has_ended());
        }
    }

    /// Waits for events. Returns the volumes whose sockets have clients, and the places of sessions
    /// that have messages.
    fn wait(&self) -> (Vec<Arc<str>>, Vec<usize>) {
        let wake = self.inbox.wake();
        let mut polled = vec![PollFd::new(&wake, PollFlags::IN)];
        let accepts = self.sessions.len() < SESSIONS_MAX;
        let sockets = self.sockets.iter().filter(|_| accepts);
        polled.extend(sockets.map(|socket| PollFd::new(&socket.listener, PollFlags::IN)));
        let first_session = polled.len();
        // A session that waits for its rings is not polled, so that its end is not reported in
        // each turn.
        let listening = self.sessions.iter().enumerate().filter(|(_, session)| session.listens());
        let listening: Vec<usize> = listening.map(|(at, _)| at).collect();
        polled.extend(
            listening.iter().map(|&at| PollFd::new(self.sessions[at].socket(), PollFlags::IN)),
        );
        // Interrupted by a signal, or out of memory for a moment.
        let _ = poll(&mut polled, None);
        let sockets = polled[1..first_session].iter().zip(&self.sockets);
        let sockets = sockets.filter(|(fd, _)| !fd.revents().is_empty());
        let sessions = polled[first_session..].iter().zip(&listening);
        let sessions = sessions.filter(|(fd, _)| !fd.revents().is_empty());
        (
            sockets.map(|(_, socket)| Arc::clone(&socket.volume)).collect(),
            sessions.map(|(_, &at)| at).collect(),
        )
    }

    fn handle(&mut self, event: SessionsEvent) {
        match event {
            SessionsEvent::Listen { volume, listener, device } => {
                self.accept_waiting(&volume);
                self.sockets.retain(|socket| socket.volume != volume);
                self.sockets.push(VolumeSocket { volume, listener, device });
            }
            SessionsEvent::Grow { volume, bytes } => {
                let sockets = self.sockets.iter_mut().filter(|socket| socket.volume == volume);
                sockets.for_each(|socket| socket.device.bytes = bytes);
                let sessions = self.sessions.iter_mut().filter(|it| *it.volume() == *volume);
                sessions.for_each(|session| session.grow(bytes));
            }
            SessionsEvent::StopListening => {
                let volumes = self.sockets.iter().map(|socket| Arc::clone(&socket.volume));
                volumes.collect::<Vec<_>>().iter().for_each(|volume| self.accept_waiting(volume));
                self.sockets.clear();
            }
            SessionsEvent::Close { volume } => {
                self.sockets.retain(|socket| socket.volume != volume);
                for session in self.sessions.iter_mut().filter(|it| *it.volume() == *volume) {
                    session.close(&self.workers);
                }
            }
            SessionsEvent::Notice(notice) => {
                let (Notice::Started { key, .. }
                | Notice::MemoryChanged { key, .. }
                | Notice::Ended { key, .. }) = notice;
                let mut sessions = self.sessions.iter_mut();
                if let Some(session) = sessions.find(|session| session.id() == key.session) {
                    session.notice(&self.workers, &notice);
                }
            }
            SessionsEvent::End => self.has_ended = true,
        }
    }

    /// Accepts the monitors that have connected to a socket which is about to be closed.
    fn accept_waiting(&mut self, volume: &str) {
        while self.sessions.len() < SESSIONS_MAX && self.accept(volume) {}
    }

    /// Accepts a monitor. Returns whether there was one.
    fn accept(&mut self, volume: &str) -> bool {
        let socket = self.sockets.iter().find(|socket| *socket.volume == *volume);
        // Closed by an event of this turn.
        let Some(VolumeSocket { volume, listener, device }) = socket else { return false };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = match accept_with(listener, flags) {
            Ok(connection) => connection,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return false,
            Err(error) => {
                tracing::warn!(%volume, %error, "cannot accept a virtual machine");
                // Until the descriptors that are missing may be there.
                std::thread::sleep(std::time::Duration::from_millis(100));
                return false;
            }
        };
        let peer = socket_peercred(&connection).map_or(Peer::Unknown, |peer| Peer::Process {
            id: peer.pid.as_raw_nonzero().get().unsigned_abs(),
            user: peer.uid.as_raw(),
        });
        self.next_session += 1;
        let (id, volume) = (self.next_session, Arc::clone(volume));
        tracing::info!(%volume, client = %peer, "a virtual machine monitor has connected");
        let inbox = Arc::clone(&self.inbox);
        self.sessions.push(MonitorSession::new((id, volume), (connection, peer), *device, inbox));
        true
    }
}
