//! The command line: every command and option with its help.
//!
//! Words that the configuration file has as well are read by the parsers of `forebay_config`, so
//! that a value is understood in both or in neither.

use crate::rescue::RescueCommand;
use crate::user::is_root;
use clap::{Args, Parser, Subcommand};
use forebay_config::{
    Ecc, IoEngine, KeeperMode, Listen, LogLevel, MemorySetting, Percent, Seconds, Settings, Source,
    Supply, TlsMode, UpsWords, VolumeSpec, Workers, default_state,
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

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve volumes to clients, until stopped
    Serve(ServeArguments),
    /// Show what a running forebay is doing
    Status(ShowArguments),
    /// List, add, change and remove volumes of a running forebay
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Rehearse a power failure on a running forebay
    #[command(long_about = "Rehearse a power failure on a running forebay.\n\
        What is dirty under supplies is written to the vault's space, made stable, read back and \
        compared, and the disks are flushed, while clients are served. The report is kept in the \
        state directory, under drills. Ends with 1 if not everything would have been in safety \
        while the battery lasts.")]
    Drill(ShowArguments),
    /// Write all dirty data to the disks and end a running forebay
    Stop(StateArguments),
    /// Let the program now at the path of a running forebay go on with its pool
    #[command(long_about = "Let the program now at the path of a running forebay go on with its \
        pool.\nNothing is written to the disks first: what is dirty stays in memory, which a \
        keeper holds. Clients connect again. The new program checks the configuration first; if it \
        refuses it, nothing happens. If it does not come to serve, the one before goes on.")]
    Upgrade(StateArguments),
    /// Look into a journal or a vault, and bring what it holds to a disk, while no forebay has them
    #[command(subcommand)]
    Rescue(RescueCommand),
}

/// Which forebay is meant.
#[derive(Args, Clone, Debug)]
pub(crate) struct StateArguments {
    /// State directory of the daemon [default: /run/forebay for root, else
    /// $XDG_RUNTIME_DIR/forebay]
    #[arg(long, value_name = "DIR", env = "FOREBAY_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
}

/// Arguments of commands that show something.
#[derive(Args, Debug)]
pub(crate) struct ShowArguments {
    /// Show it as JSON, in the form of the control API
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

    /// Volume to serve: NAME=BACKING[,KEY=VALUE...]; may be given several times
    #[arg(
        long = "volume",
        value_name = "SPEC",
        long_help = volume_help("Volume to serve: NAME=BACKING[,KEY=VALUE...]; may be repeated.")
    )]
    volumes: Vec<VolumeSpec>,

    /// Check the configuration and the disks it names, and end; nothing is opened or changed
    #[arg(long)]
    pub(crate) check: bool,

    /// Configuration file; options win over what it says
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where NBD clients connect: unix:PATH or tcp:HOST:PORT; may be given several times
    /// [default: unix:STATE/nbd.sock]
    #[arg(long, value_name = "ADDRESS")]
    nbd: Vec<Listen>,

    /// Memory for the cache: a size like 2GiB, or auto [default: auto, an eighth of what is
    /// available]
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemorySetting>,

    #[command(flatten)]
    state: StateArguments,

    /// Serve this volume although its disk is not known to be the one that journal, vault or pool
    /// hold writes for, and write them there; may be given several times
    #[arg(long = "accept-changed-disk", value_name = "VOLUME")]
    pub(crate) accepted_disks: Vec<String>,

    /// Serve this volume although the vault that may hold its newest data is not there, and give
    /// up what is in it; may be given several times
    #[arg(long = "accept-lost-vault", value_name = "VOLUME")]
    pub(crate) accepted_vaults: Vec<String>,

    /// Serve this volume although the journal that may hold its newest data is not there, and give
    /// up what is in it; may be given several times
    #[arg(long = "accept-lost-journal", value_name = "VOLUME")]
    pub(crate) accepted_journals: Vec<String>,

    /// Threads of the data path: a number or auto [default: auto]
    #[arg(long, value_name = "N")]
    workers: Option<Workers>,

    /// How files and sockets are driven: io_uring, epoll or auto [default: auto]
    #[arg(long, value_name = "ENGINE")]
    io: Option<IoEngine>,

    /// Who holds the pool, so that it outlives the server: auto, yes (a process of its own) or no
    /// [default: auto, systemd where it keeps descriptors, otherwise yes]
    #[arg(long, value_name = "WHO")]
    keeper: Option<KeeperMode>,

    /// How damage to memory is noticed and undone: parity, checksum or off [default: parity]
    #[arg(long, value_name = "HOW")]
    ecc: Option<Ecc>,

    /// Supply that bridges a power failure: NAME@HOST:PORT of Network UPS Tools,
    /// NAME=command:PROGRAM or NAME=file:PATH; may be given several times
    #[arg(long, value_name = "SUPPLY")]
    ups: Vec<Supply>,

    /// Which of the supplies are enough, as in "any 1 of (a, b)" [default: all]
    #[arg(long, value_name = "EXPRESSION")]
    ups_needed: Option<String>,

    /// Charge of the battery below which write-back ends, in percent [default: 79]
    #[arg(long, value_name = "PERCENT")]
    ups_threshold: Option<Percent>,

    /// How long the supplies must have been well before write-back begins [default: 60]
    #[arg(long, value_name = "SECONDS")]
    ups_settle_seconds: Option<Seconds>,

    /// Runtime of the battery that is never reckoned with [default: 60]
    #[arg(long, value_name = "SECONDS")]
    ups_margin_seconds: Option<Seconds>,

    /// Vault that takes what is dirty under supplies when the battery runs low: a file or device of
    /// its own; a file that is not there is made
    #[arg(long, value_name = "PATH")]
    vault: Option<String>,

    /// How much is logged: error, warn, info, debug or trace [default: info]
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

    /// Authority that clients' certificates must come from, PEM
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
}

impl ServeArguments {
    /// The settings these arguments give, and the file they name.
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
            ups: UpsWords {
                supplies: self.ups,
                needed: self.ups_needed,
                threshold: self.ups_threshold,
                settle: self.ups_settle_seconds,
                margin: self.ups_margin_seconds,
                // A password would be seen by everybody in the list of processes.
                ..UpsWords::default()
            },
            vault: self.vault,
            volumes,
        };
        Source { file: self.config, options, state_default: default_state(is_root()) }
    }
}

/// Says how a volume is written on the command line, after a first sentence.
fn volume_help(first: &str) -> String {
    let keys: String = VOLUME_SETTINGS.iter().map(in_help).collect();
    format!(
        "{first}\n\
         BACKING is a path, or one of memory:SIZE, model:hdd?size=SIZE, nbd://HOST/EXPORT and \
         nbd+unix:///EXPORT?socket=PATH, with or without layers before it, as in \
         delay(read=5ms,write=5ms):/dev/sdb.\n\
         The keys are\n{keys}\
         Write-back needs protection=journal,journal=BACKING, or protection=ups with --ups, or \
         protection=none,accept-loss=yes. Several volumes may name the same journal. A comma \
         outside of parentheses ends BACKING where a key and = follow."
    )
}

/// Lists the settings that can change while a volume is served.
fn live_settings_help() -> String {
    let live = VOLUME_SETTINGS.iter().filter(|setting| setting.is_live);
    let keys: String = live.map(in_help).collect();
    format!(
        "The settings:\n{keys}\
         For another journal, or what the disk is like, remove the volume and add it again."
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

/// What is to be done with volumes.
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
    /// Write a volume's dirty data to its disk and take the volume away
    Remove {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Change settings of a volume while it is served; its journal stays
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
        A disk that failed a flush may have lost what was written before, and later flushes do \
        not tell of it. So FLUSH and FUA fail from then on, until the disk and what is on it \
        have been checked and this is said.")]
    Trust {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Measure below which size writes of a volume are worth gathering
    #[command(long_about = "Measure below which size writes of a volume are worth gathering.\n\
        Takes some reads of its disk, for a second at most, at a moment when no request is under \
        way. Volumes are measured by themselves when they are added; do it again when the disk \
        has changed, or was empty then.")]
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
