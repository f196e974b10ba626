//! Two hosts, and images that both reach: as files, or as exports of a third server.

use crate::process::{Daemon, MIB, make_file};
use std::fmt::Display;
use std::ops::Deref;
use std::path::PathBuf;
use tempfile::TempDir;

/// The directories of two hosts, and what both reach.
pub struct Hosts {
    pub shared: TempDir,
    pub here: TempDir,
    pub there: TempDir,
}

impl Hosts {
    /// With images of these names and sizes in MiB.
    pub fn new(images: &[(&str, u64)]) -> Self {
        let [shared, here, there] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let hosts = Self { shared, here, there };
        for (name, mib) in images {
            make_file(hosts.image(name), mib * MIB);
        }
        hosts
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    pub fn image(&self, name: &str) -> PathBuf {
        self.at(&format!("{name}.img"))
    }

    /// A store of which both hosts remember in one file who owns it.
    fn owned(&self, name: &str, store: impl Display) -> String {
        format!("owned(record={}):{store}", self.at(&format!("{name}.owners")).display())
    }

    /// An image, of which both hosts remember who owns it.
    pub fn owned_image(&self, name: &str) -> String {
        self.owned(name, self.image(name).display())
    }
}

/// Two hosts, and images that a third server exports to them.
pub struct Exports {
    hosts: Hosts,
    pub server: Daemon,
}

impl Exports {
    /// See [`Hosts::new`].
    pub fn new(images: &[(&str, u64)]) -> Self {
        let hosts = Hosts::new(images);
        let volumes: Vec<_> = images
            .iter()
            .map(|(name, _)| format!("{name}={},mode=write-through", hosts.image(name).display()))
            .collect();
        let server = Daemon::start(hosts.shared.path(), "auto", "64MiB", &volumes);
        Self { hosts, server }
    }

    /// An export, of which both hosts remember who owns it.
    pub fn owned_export(&self, name: &str) -> String {
        let uri = format!("nbd+unix:///{name}?socket={}", self.server.socket.display());
        self.owned(name, uri)
    }
}

impl Deref for Exports {
    type Target = Hosts;

    fn deref(&self) -> &Hosts {
        &self.hosts
    }
}
