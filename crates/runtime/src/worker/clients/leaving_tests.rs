//! Clients of a volume that is about to leave the server, before they are disconnected.

use crate::Runtime;
use crate::rig::common::client::Client;
use crate::rig::{MIB, listen, quiet_config, volume};
use forebay_backend::MemoryBackend;
use forebay_frontend_nbd::NbdServer;
use forebay_nbd::NbdCommand;
use forebay_types::IoError;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn a_request_to_a_volume_that_is_to_stand_by_gets_no_error_but_the_end_of_its_connection() {
    let (directory, server) = (tempfile::tempdir().unwrap(), NbdServer::new());
    let runtime = Runtime::start(quiet_config(64 * MIB), &server).unwrap();
    let disk = Arc::new(MemoryBackend::new(16 * MIB).unwrap());
    runtime.volumes().add(volume("disk", disk)).unwrap();
    let socket = directory.path().join("nbd.sock");
    listen(&server, &socket);
    let (mut client, mut other) = (Client::new(&socket, "disk"), Client::new(&socket, "disk"));
    client.write(0, &[1; 4096]).unwrap();
    let leaving = runtime.named("disk").unwrap();
    leaving.is_closed.store(true, Ordering::Relaxed);
    let cookie = client.try_send(NbdCommand::Write, 0, 0, 4096, &[2; 4096]).unwrap();
    assert!(client.try_wait(cookie).is_none(), "another host may carry it out");
    // What no host would do is answered.
    assert_eq!(other.call(NbdCommand::Read, 0, 16 * MIB, 4096).result, Err(IoError::Invalid));
    leaving.is_closed.store(false, Ordering::Relaxed);
    drop((client, other));
    runtime.stop(|_| {}).unwrap();
}
