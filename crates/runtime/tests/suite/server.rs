//! A runtime with a Unix socket in a directory of its own.

use crate::common::GATHERS_ALL;
use crate::common::client::{Client, PATIENCE, connect};
use forebay_backend::layers::Gate;
use forebay_backend::{Backend, MemoryBackend};
use forebay_frontend_nbd::{Listener, NbdServer, TlsSetup};
use forebay_runtime::{
    Ecc, Engine, Runtime, RuntimeConfig, Timeouts, VolumeSettings, VolumeStatus,
};
use forebay_types::{Auto, Mode, VolumeConfig};
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tempfile::TempDir;

/// A running server.
pub struct Server {
    /// The runtime under test.
    pub runtime: Runtime,
    /// Its front end.
    pub nbd: Arc<NbdServer>,
    /// Where clients connect.
    pub socket: PathBuf,
    /// A directory for files, removed with the server.
    pub directory: TempDir,
}

/// The default memory of a server, in bytes.
const MEMORY_BYTES: u64 = 64 << 20;

impl Server {
    /// A server with two workers and no volume.
    pub fn start(engine: Engine) -> Self {
        Self::start_with(engine, MEMORY_BYTES, 2)
    }

    /// A server with a given memory and number of workers.
    pub fn start_with(engine: Engine, memory_bytes: u64, workers: usize) -> Self {
        Self::patient(RuntimeConfig {
            memory_bytes,
            start_bytes: memory_bytes,
            workers,
            ..Self::config(engine)
        })
    }

    /// The configuration of a server with two workers and no journal.
    pub fn config(engine: Engine) -> RuntimeConfig {
        let (memory_bytes, ecc) = (MEMORY_BYTES, Ecc::default());
        RuntimeConfig {
            memory_bytes,
            start_bytes: memory_bytes,
            workers: 2,
            engine,
            journals: 0,
            ecc,
        }
    }

    /// A server with timeouts that a slow machine does not reach, which destages only on request.
    pub fn patient(config: RuntimeConfig) -> Self {
        let [handshake, payload_pause, disk, dirty_age] = [PATIENCE; 4];
        let timeouts =
            Timeouts { handshake, payload_pause, disk, dirty_age, ..Timeouts::default() };
        Self::start_over(config, timeouts)
    }

    /// A server with these timeouts.
    pub fn start_over(config: RuntimeConfig, timeouts: Timeouts) -> Self {
        let nbd = NbdServer::new();
        let runtime = Runtime::start_with(config, timeouts, &nbd).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        let server = Self { runtime, nbd, socket, directory };
        let socket = server.socket.clone();
        server.listen(&socket, TlsSetup::new(None));
        server
    }

    /// Listens at another socket.
    pub fn listen(&self, socket: &std::path::Path, tls: TlsSetup) {
        let listener = UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.nbd.listen(Listener::new(listener.into(), false, tls));
    }

    /// Whether a new connection gets a greeting within a moment.
    pub fn accepts(&self) -> bool {
        let mut stream = connect(&self.socket);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
        matches!(stream.read(&mut [0; 18]), Ok(18))
    }

    /// Serves a volume.
    pub fn add(&self, name: &str, backend: Arc<dyn Backend>, mode: Mode) {
        self.runtime.volumes().add(settings(name, backend, mode)).unwrap();
    }

    /// Serves a disk in memory, and returns it for inspection.
    pub fn add_memory(&self, name: &str, size_bytes: u64, mode: Mode) -> Arc<MemoryBackend> {
        let disk = Arc::new(MemoryBackend::new(size_bytes).unwrap());
        self.add(name, Arc::clone(&disk) as _, mode);
        disk
    }

    /// Serves a disk in memory behind a gate.
    pub fn add_gated(
        &self,
        name: &str,
        size_bytes: u64,
        mode: Mode,
    ) -> (Arc<Gate>, Arc<MemoryBackend>) {
        let disk = Arc::new(MemoryBackend::new(size_bytes).unwrap());
        let gate = Gate::new(Arc::clone(&disk) as _);
        self.add(name, Arc::clone(&gate) as _, mode);
        (gate, disk)
    }

    /// Carries out every operation on a volume that is not named `v`, and takes a status.
    pub fn administer_another(&self) {
        self.add_memory("other", 1 << 20, Mode::WriteBack);
        assert_eq!(self.client("other").write(0, &[1; 4096]), Ok(()));
        self.set_mode("other", Mode::WriteThrough);
        self.runtime.volumes().flush("other", |_| {}).unwrap();
        self.runtime.volumes().trust("other", |_| {}).unwrap();
        self.runtime.volumes().remove("other", |_| {}).unwrap();
        assert!(self.runtime.volumes().close_adoption().is_empty());
        self.runtime.status().unwrap();
    }

    /// Changes a volume's mode and nothing else.
    pub fn set_mode(&self, name: &str, mode: Mode) {
        self.runtime.volumes().change(name, in_mode(mode), false).unwrap();
    }

    pub fn client(&self, volume: &str) -> Client {
        Client::new(&self.socket, volume)
    }

    pub fn status(&self, volume: &str) -> VolumeStatus {
        let status = self.runtime.status().unwrap();
        status.volumes.into_iter().find(|status| status.name == volume).unwrap()
    }

    /// Stops the server. Fails if it cannot flush everything to the disks.
    pub fn stop(self) {
        self.runtime.stop(|_| {}).unwrap();
    }
}

/// Ends the workers, as their memory would otherwise stay in use until the last test has ended. A
/// failed test leaves them alone: they may be what hangs.
impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // An error means that it was stopped.
            let _ = self.runtime.pause();
        }
    }
}

/// Runs `work` while I/O is held at a closed gate, and opens the gate. Fails if `work` waits for
/// that I/O.
pub fn while_held(gate: &Gate, work: impl FnOnce() + Send) {
    let is_done = std::thread::scope(|scope| {
        assert!(gate.wait_held(1, PATIENCE), "the operation waits for its device");
        let (sender, done) = mpsc::channel();
        scope.spawn(move || {
            work();
            sender.send(()).unwrap();
        });
        let is_done = done.recv_timeout(PATIENCE).is_ok();
        gate.open();
        is_done
    });
    assert!(is_done, "an unrelated operation waits for the device, too");
}

/// A writable volume without prefetch: its disk gets only the I/O that a test causes, as long as
/// the server keeps lines dirty.
pub fn settings(name: &str, backend: Arc<dyn Backend>, mode: Mode) -> VolumeSettings {
    VolumeSettings { config: in_mode(mode), ..VolumeSettings::new(name, backend, mode) }
}

/// The settings of a volume from [`settings`] in a mode.
pub fn in_mode(mode: Mode) -> VolumeConfig {
    // In write-through mode, gathering would make a write wait for others of its stripe.
    let gather_below = if mode == Mode::WriteBack { GATHERS_ALL.unwrap() } else { 0 };
    let gather_below = Auto::Set(gather_below);
    VolumeConfig { mode, prefetch: false, gather_below, ..VolumeConfig::default() }
}

/// Reads from a backend directly.
pub fn read_backend(backend: &dyn Backend, offset: u64, len: u64) -> Vec<u8> {
    use forebay_backend::{AlignedBuffer, Blocking};
    let mut buffer = AlignedBuffer::new(len as usize);
    Blocking::new(backend).read(offset, &mut buffer).unwrap();
    buffer.to_vec()
}
