import java.net.InetAddress;
import java.net.InetSocketAddress;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.RetryingHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** The metastore of Hive 3.1 on the loopback address: its own main class listens on every address. Argument: the port. */
public class LoopbackMetastore3 {
  public static void main(String[] arguments) throws Exception {
    var address = new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(arguments[0]));
    var settings = MetastoreConf.newMetastoreConf();
    var handler = new HiveMetaStore.HMSHandler("tests", settings, false);
    var retrying = RetryingHMSHandler.getProxy(settings, handler, false);
    var server = new TThreadPoolServer.Args(new TServerSocket(address)).protocolFactory(new TBinaryProtocol.Factory());
    new TThreadPoolServer(server.processor(new TSetIpAddressProcessor<>(retrying))).serve();
  }
}
