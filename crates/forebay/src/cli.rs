//! The command line: every command and option with its help.
//!
//! `forebay_config` parses all values that the configuration file has too, so that both accept the
//! same.

use crate::rescue::RescueCommand;
use crate::user::is_root;
use clap::{Args, Parser, Subcommand};
use forebay_config::{
    Ecc, IoEngine, KeeperMode, Listen, LogLevel, MemorySetting, Percent, Seconds, Settings, Source,
    TlsMode, Ups, UpsOptions, VolumeSpec, Workers, default_state,
};
use forebay_types::{VOLUME_SETTINGS, VolumeSetting};
use std::path::PathBuf;

/// A block cache between clients and disks.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "To begin: forebay serve /path/to/disk, then forebay status."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve volumes to clients until stopped
    Serve(ServeArguments),
    /// Show the status of a running forebay
    Status(ShowArguments),
    /// List, add, change and remove volumes of a running forebay
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Rehearse a power failure on a running forebay
    #[command(long_about = "Rehearse a power failure on a running forebay.\n\
        The dirty data of volumes under a UPS is written to the vault, synced, read back and \
        compared, and the disks are flushed, while clients are served. The vault is empty \
        afterwards. The report is kept in the state directory, under drills. The exit code is 1 if \
        the battery would not have lasted until all data was saved.")]
    Drill(ShowArguments),
    /// Write all dirty data to the disks and stop a running forebay
    Stop(StateArguments),
    /// Replace a running forebay by the program now at its path, which adopts the pool
    #[command(long_about = "Replace a running forebay by the program now at its path, which \
        adopts the pool.\nNo data is written to the disks first: dirty data stays in memory, which \
        a keeper holds. Clients have to reconnect. The new program checks the configuration first; \
        if it refuses it, nothing changes. If it ends before it serves, the old program is started \
        again.")]
    Upgrade(StateArguments),
    /// Inspect a journal or vault that no forebay uses, and write its data to a disk
    #[command(subcommand)]
    Rescue(RescueCommand),
}

/// Selects a daemon.
#[derive(Args, Clone, Debug)]
pub(crate) struct StateArguments {
    /// State directory of the daemon [default: /run/forebay for root, else
    /// $XDG_RUNTIME_DIR/forebay]
    #[arg(long, value_name = "DIR", env = "FOREBAY_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
}

/// Arguments of the commands that print a report.
#[derive(Args, Debug)]
pub(crate) struct ShowArguments {
    /// Print JSON, in the form of the control API
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) state: StateArguments,
}

/// Arguments of `forebay serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Disks or files to serve, each under its file name without extension
    #[arg(value_name = "DISK", value_parser = VolumeSpec::from_disk)]
    disks: Vec<VolumeSpec>,

    /// Volume to serve: NAME=BACKING[,KEY=VALUE...]; repeatable
    #[arg(
        long = "volume",
        value_name = "SPEC",
        long_help = volume_help("Volume to serve: NAME=BACKING[,KEY=VALUE...]; repeatable.")
    )]
    volumes: Vec<VolumeSpec>,

    /// Check the configuration and that its disks exist, then exit; opens and changes no disk
    #[arg(long)]
    pub(crate) check: bool,

    /// Configuration file; options override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Listening address for NBD clients: unix:PATH or tcp:HOST:PORT; repeatable
    /// [default: unix:STATE/nbd.sock]
    #[arg(long, value_name = "ADDRESS")]
    nbd: Vec<Listen>,

    /// Memory for the cache: a size like 2GiB, or auto [default: auto, an eighth of the available
    /// memory]
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemorySetting>,

    #[command(flatten)]
    state: StateArguments,

    /// Serve this volume even if its disk is not recognised as the one that the journal, vault or
    /// pool holds writes for, and write them to it; repeatable
    #[arg(long = "accept-changed-disk", value_name = "VOLUME")]
    pub(crate) accepted_disks: Vec<String>,

    /// Serve this volume even if the vault that may hold its newest data is missing, and give up
    /// that data; repeatable
    #[arg(long = "accept-lost-vault", value_name = "VOLUME")]
    pub(crate) accepted_vaults: Vec<String>,

    /// Serve this volume even if the journal that may hold its newest data is missing, and give up
    /// that data; repeatable
    #[arg(long = "accept-lost-journal", value_name = "VOLUME")]
    pub(crate) accepted_journals: Vec<String>,

    /// Number of worker threads, or auto [default: auto]
    #[arg(long, value_name = "N")]
    workers: Option<Workers>,

    /// I/O engine for files and sockets: io_uring, epoll or auto [default: auto]
    #[arg(long, value_name = "ENGINE")]
    io: Option<IoEngine>,

    /// Whether a keeper holds the pool across restarts of the server: auto, yes (a parent process)
    /// or no [default: auto, systemd if it stores descriptors, otherwise yes]
    #[arg(long, value_name = "MODE")]
    keeper: Option<KeeperMode>,

    /// Protection against memory damage: parity, checksum or off [default: parity]
    #[arg(long, value_name = "MODE")]
    ecc: Option<Ecc>,

    /// UPS that bridges a power failure: NAME@HOST:PORT of Network UPS Tools,
    /// NAME=command:PROGRAM or NAME=file:PATH; repeatable
    #[arg(long, value_name = "SUPPLY")]
    ups: Vec<Ups>,

    /// The UPSes that must be safe, as in "any 1 of (a, b)" [default: all]
    #[arg(long, value_name = "EXPRESSION")]
    ups_needed: Option<String>,

    /// Battery charge below which write-back ends, in percent [default: 79]
    #[arg(long, value_name = "PERCENT")]
    ups_threshold: Option<Percent>,

    /// How long the UPSes must have been safe before write-back begins [default: 60]
    #[arg(long, value_name = "SECONDS")]
    ups_settle_seconds: Option<Seconds>,

    /// Battery runtime kept in reserve [default: 60]
    #[arg(long, value_name = "SECONDS")]
    ups_margin_seconds: Option<Seconds>,

    /// Vault for the dirty data of volumes under a UPS when the battery runs low: a file or device
    /// of its own; a missing file is created
    #[arg(long, value_name = "PATH")]
    vault: Option<String>,

    /// Log level: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<LogLevel>,

    /// Encryption of connections: off, selective or forced [default: off]
    #[arg(long, value_name = "MODE")]
    tls: Option<TlsMode>,

    /// Certificate chain of the server, PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Authority that must have issued clients' certificates, PEM
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
}

impl ServeArguments {
    /// The configuration source: these settings, and the file they name.
    pub(crate) fn source(self) -> Source {
        let volumes = self.disks.into_iter().chain(self.volumes).collect();
        let options = Settings {
            memory: self.memory,
            nbd: self.nbd,
            state: self.state.state,
            workers: self.workers,
            io: self.io,
            keeper: self.keeper,
            ecc: self.ecc,
            log: self.log,
            tls: self.tls,
            tls_cert: self.tls_cert,
            tls_key: self.tls_key,
            tls_client_ca: self.tls_client_ca,
            ups: UpsOptions {
                upses: self.ups,
                needed: self.ups_needed,
                threshold: self.ups_threshold,
                settle: self.ups_settle_seconds,
                margin: self.ups_margin_seconds,
                // The process list would show a password to every user.
                ..UpsOptions::default()
            },
            vault: self.vault,
            volumes,
        };
        Source { file: self.config, options, state_default: default_state(is_root()) }
    }
}

/// The long help of a volume specification. `first` is its first sentence.
fn volume_help(first: &str) -> String {
    let keys: String = VOLUME_SETTINGS.iter().map(in_help).collect();
    format!(
        "{first}\n\
         BACKING is a path, or one of memory:SIZE, model:hdd?size=SIZE, nbd://HOST/EXPORT and \
         nbd+unix:///EXPORT?socket=PATH. Layers may precede it, as in \
         delay(read=5ms,write=5ms):/dev/sdb.\n\
         The keys are\n{keys}\
         Write-back needs protection=journal,journal=BACKING, or protection=ups with --ups, or \
         protection=none,accept-loss=yes. Volumes may share a journal. A comma outside \
         parentheses ends BACKING if a key and = follow it."
    )
}

/// The help of the settings that can change while a volume is served.
fn live_settings_help() -> String {
    let live = VOLUME_SETTINGS.iter().filter(|setting| setting.is_live);
    let keys: String = live.map(in_help).collect();
    format!(
        "The settings:\n{keys}\
         To change other settings, remove the volume and add it again."
    )
}

fn in_help(setting: &VolumeSetting) -> String {
    let VolumeSetting { key, values, help, .. } = setting;
    let default = match setting.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    format!("  {key}={values}\n      {help}{default}\n")
}

/// The subcommands of `forebay volume`.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// List the volumes
    List(ShowArguments),
    /// Add a volume: NAME=BACKING[,KEY=VALUE...], as in forebay serve --volume
    Add {
        /// The volume
        #[arg(
            value_name = "SPEC",
            long_help = volume_help("The volume, NAME=BACKING[,KEY=VALUE...].")
        )]
        volume: VolumeSpec,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Write a volume's dirty data to its disk and remove the volume
    Remove {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Change settings of a volume while it is served
    Set {
        /// The volume's name
        name: String,
        /// The settings
        #[arg(value_name = "KEY=VALUE", required = true, long_help = live_settings_help())]
        settings: Vec<String>,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Trust a volume's disk again after it failed a flush, and flush it
    #[command(long_about = "Trust a volume's disk again after it failed a flush, and flush it.\n\
        A disk that failed a flush may have lost earlier writes, and later flushes do not report \
        that. FLUSH and FUA therefore fail until you have checked the disk and its data, and run \
        this command.")]
    Trust {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Measure the size below which writes of a volume are worth gathering
    #[command(long_about = "Measure the size below which writes of a volume are worth \
        gathering.\nThis reads from the disk for at most a second, at a moment without requests. \
        Volumes are calibrated automatically when they are added; repeat it if the disk was empty \
        then or has changed since.")]
    Calibrate {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Write a volume's dirty data to its disk
    Flush {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn disks_and_volumes_are_served_in_order() {
        let cli = Cli::parse_from(["forebay", "serve", "/dev/sdb", "--volume", "m=memory:1GiB"]);
        let Command::Serve(arguments) = cli.command else { panic!("{cli:?}") };
        let volumes = arguments.source().options.volumes;
        let texts: Vec<_> = volumes.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["sdb=/dev/sdb", "m=memory:1GiB"]);
    }
}
