//! A small NBD server that misbehaves on request: newstyle handshake, simple replies, a disk in
//! memory, and a hook for each request.

use forebay_nbd::proto::export_flag;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use tempfile::TempDir;

pub(super) const SIZE_BYTES: usize = 8 << 20;
/// All capabilities that a backend uses.
pub(super) const ALL_FLAGS: u16 = export_flag::HAS_FLAGS
    | export_flag::SEND_FLUSH
    | export_flag::SEND_FUA
    | export_flag::SEND_TRIM
    | export_flag::SEND_WRITE_ZEROES;

/// A received request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
pub(super) const DISCONNECT: u16 = 2;
pub(super) const FLUSH: u16 = 3;
const WRITE_ZEROES: u16 = 6;

/// The reaction to a request.
pub(super) enum Act {
    Serve,
    Fail(u32),
    /// End the connection unanswered.
    Close,
    /// Answer with these bytes instead.
    Reply(Vec<u8>),
    /// Never answer it.
    Ignore,
    /// Answer without having read the data, and end the connection.
    AnswerEarly,
}

type Script = dyn Fn(usize, &Seen) -> Act + Send + Sync;

pub(super) struct Server {
    _directory: TempDir,
    socket: PathBuf,
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    data: Mutex<Vec<u8>>,
    pub(super) seen: Mutex<Vec<Seen>>,
    pub(super) flags: Mutex<u16>,
    pub(super) size_bytes: Mutex<u64>,
    connections: Mutex<Vec<UnixStream>>,
    script: Box<Script>,
}

impl Server {
    /// A server that calls `script` for each request, with the number of its connection.
    pub(super) fn new(
        flags: u16,
        script: impl Fn(usize, &Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let shared = Arc::new(Shared {
            data: Mutex::new(vec![0; SIZE_BYTES]),
            seen: Mutex::new(Vec::new()),
            flags: Mutex::new(flags),
            size_bytes: Mutex::new(SIZE_BYTES as u64),
            connections: Mutex::new(Vec::new()),
            script: Box::new(script),
        });
        let server = Self { _directory: directory, socket, shared };
        server.listen();
        server
    }

    pub(super) fn url(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket.display())
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Stops listening, and ends all connections.
    pub(super) fn stop(&self) {
        std::fs::remove_file(&self.socket).unwrap();
        self.cut();
    }

    /// Stops, and listens again with a full backlog, accepting nothing: a connect hangs while the
    /// result lives.
    pub(super) fn hang(&self) -> (UnixListener, UnixStream) {
        self.stop();
        // Under another name first, so that the backend cannot take the place in the backlog.
        let path = self.socket.with_extension("hanging");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        std::fs::rename(&path, &self.socket).unwrap();
        (listener, waiting)
    }

    /// Ends all connections.
    pub(super) fn cut(&self) {
        for stream in self.shared.connections.lock().unwrap().iter() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Starts listening.
    pub(super) fn listen(&self) {
        let listener = UnixListener::bind(&self.socket).unwrap();
        let shared = self.shared.clone();
        // The thread ends with the process; after `stop` it is unreachable.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                let number = {
                    let mut connections = shared.connections.lock().unwrap();
                    connections.push(stream.try_clone().unwrap());
                    connections.len() - 1
                };
                thread::spawn(move || {
                    let _ = shared.serve(number, &stream);
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                });
            }
        });
    }
}

fn array<const N: usize>(mut stream: &UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u32_from(stream: &UnixStream) -> io::Result<u32> {
    array(stream).map(u32::from_be_bytes)
}

impl Shared {
    fn serve(&self, number: usize, stream: &UnixStream) -> io::Result<()> {
        self.handshake(stream)?;
        while self.request(number, stream)? {}
        Ok(())
    }

    fn handshake(&self, mut stream: &UnixStream) -> io::Result<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        u32_from(stream)?;
        loop {
            let _magic: [u8; 8] = array(stream)?;
            let option = u32_from(stream)?;
            let mut payload = vec![0; u32_from(stream)? as usize];
            stream.read_exact(&mut payload)?;
            let mut reply = |kind: u32, data: &[u8]| {
                let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
                bytes.extend(option.to_be_bytes());
                bytes.extend(kind.to_be_bytes());
                bytes.extend((data.len() as u32).to_be_bytes());
                bytes.extend(data);
                stream.write_all(&bytes)
            };
            // Supports only GO.
            if option != 7 {
                reply(0x8000_0001, &[])?;
                continue;
            }
            let mut info = vec![0, 0];
            info.extend(self.size_bytes.lock().unwrap().to_be_bytes());
            info.extend(self.flags.lock().unwrap().to_be_bytes());
            reply(3, &info)?;
            return reply(1, &[]);
        }
    }

    fn request(&self, number: usize, mut stream: &UnixStream) -> io::Result<bool> {
        let header: [u8; 28] = array(stream)?;
        let field = |at: usize, len: usize| {
            header[at..at + len].iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        let seen = Seen {
            flags: field(4, 2) as u16,
            command: field(6, 2) as u16,
            cookie: field(8, 8),
            offset: field(16, 8),
            len: field(24, 4) as u32,
        };
        self.seen.lock().unwrap().push(seen);
        if seen.command == DISCONNECT {
            return Ok(false);
        }
        let reply = |errno: u32| {
            let mut bytes = 0x6744_6698u32.to_be_bytes().to_vec();
            bytes.extend(errno.to_be_bytes());
            bytes.extend(seen.cookie.to_be_bytes());
            bytes
        };
        let act = (self.script)(number, &seen);
        if matches!(act, Act::AnswerEarly) {
            stream.write_all(&reply(0))?;
            return Ok(false);
        }
        let mut payload = vec![0; if seen.command == WRITE { seen.len as usize } else { 0 }];
        stream.read_exact(&mut payload)?;
        match act {
            Act::Serve => {
                let mut bytes = reply(0);
                let range = seen.offset as usize..(seen.offset + u64::from(seen.len)) as usize;
                let mut data = self.data.lock().unwrap();
                match seen.command {
                    READ => bytes.extend_from_slice(&data[range]),
                    WRITE => data[range].copy_from_slice(&payload),
                    WRITE_ZEROES => data[range].fill(0),
                    _ => {}
                }
                drop(data);
                stream.write_all(&bytes)?;
            }
            Act::Fail(errno) => stream.write_all(&reply(errno))?,
            Act::Close => return Ok(false),
            Act::Reply(bytes) => stream.write_all(&bytes)?,
            Act::Ignore | Act::AnswerEarly => {}
        }
        Ok(true)
    }
}
