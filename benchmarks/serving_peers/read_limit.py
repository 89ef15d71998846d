"""How fast this machine reads memory: `python -m serving_peers.read_limit` prints bytes per second after "answer"."""

from serving_peers.contender import NUM_THREADS
from whet.measure.machine.bandwidth import read_bandwidth

if __name__ == "__main__":
    print("answer", read_bandwidth(NUM_THREADS).memory)
