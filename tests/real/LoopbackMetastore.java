import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.RetryingHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** The metastore of Hive 2.3 on the loopback address: its own main class listens on every address. Arguments: the port, and whether it keeps locks. */
public class LoopbackMetastore {
  public static void main(String[] arguments) throws Exception {
    var address = new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(arguments[0]));
    var settings = new HiveConf();
    if (Boolean.parseBoolean(arguments[1])) {
      TxnDbUtil.prepDb(settings);
      var locks = TxnUtils.getTxnStore(settings);
      Executors.newSingleThreadScheduledExecutor().scheduleWithFixedDelay(locks::performTimeOuts, 1, 1, TimeUnit.SECONDS);
    }
    var handler = new HiveMetaStore.HMSHandler("tests", settings, false);
    var retrying = RetryingHMSHandler.getProxy(settings, handler, false);
    var server = new TThreadPoolServer.Args(new TServerSocket(address)).protocolFactory(new TBinaryProtocol.Factory());
    new TThreadPoolServer(server.processor(new TSetIpAddressProcessor<>(retrying))).serve();
  }
}
